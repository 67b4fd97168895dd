-- Exit statuses, and errors of the command line.

local errors = require("moonshard.base.error")

local status = { OK = 0, BAD_INPUT = 2, FAILED_RUN = 3, INTERRUPTED = 130, TERMINATED = 143 }

-- Failures of the run itself, not of its input. Any other error before the first step is a mistake in the recipe, its
-- settings or its files.
local BY_CODE = {
  MS_ENOMEM = status.FAILED_RUN, MS_EIO = status.FAILED_RUN, MS_EPEER = status.FAILED_RUN,
  MS_ETIMEOUT = status.FAILED_RUN, MS_ENONFINITE = status.FAILED_RUN, MS_ERACE = status.FAILED_RUN,
  MS_EINTERNAL = status.FAILED_RUN, MS_EDEVICE = status.FAILED_RUN, MS_EINTERRUPT = status.INTERRUPTED,
}

---@param raised any the value passed to error()
---@param training boolean? whether a step had run by then
---@return integer exit status
function status.of(raised, training)
  local other = training and status.FAILED_RUN or status.BAD_INPUT
  return errors.is(raised) and BY_CODE[raised.status] or other
end

---Raises an error without a place in a recipe: about the command line, or the machine.
---@param name string "MS_EINVAL", ...
---@param format string
---@param ... any arguments of string.format
function status.refuse(name, format, ...)
  error(errors.new({ status = name, message = errors.format(format, ...) }), 0)
end

return status
