-- moonshard host: one host's part of `moonshard run --hosts`, which starts it through an agent such as ssh. It is not
-- for users: its orders come as frames through standard input (runtime/host/hosts/remote.h).

local refuse = require("moonshard.base.exit_status").refuse

local host = {}

---@param arguments string[] without "host"
---@return integer exit status
function host.main(arguments)
  if arguments[1] then
    refuse("MS_EINVAL", "unexpected argument %s: `moonshard run --hosts` starts this command on each host",
      arguments[1])
  end
  return require("moonshard.host").serve()
end

return host
