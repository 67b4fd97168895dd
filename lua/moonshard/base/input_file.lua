-- Files that are read whole. What a user names as data has to be a regular file (input_file.read), because a pipe that
-- nobody writes would be waited for, and a folder reads like an empty file.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local C, ffi = engine.C, engine.ffi

ffi.cdef "int access(const char *path, int mode);"

local input_file = {}

---Whether there is anything of this name.
---@param path string
---@return boolean
function input_file.exists(path) return ffi.C.access(path, 0) == 0 end

---The bytes of a file, a pipe or what the kernel shows as one, for callers that know what a missing one means.
---@param path string
---@return string? text nil: it cannot be read
---@return string? why "x.lua: No such file or directory"
function input_file.text(path)
  local file, why = io.open(path, "rb")
  if not file then return nil, why end
  local text, failed = file:read("*a")
  file:close()
  if not text then return nil, ("%s: %s"):format(path, failed or "it cannot be read") end
  return text
end

---The bytes of a file. MS_EINVAL when it is not there or not a regular file, MS_EIO when it cannot be read.
---@param path string
---@param needed string for the message, what it is for: "a folder of Hugging Face's layout has a config.json"
---@return string
function input_file.read(path, needed)
  local text, bytes = ffi.new("char *[1]"), ffi.new("int64_t[1]")
  local status = C.ms_file_text(path, text, bytes)
  if status ~= 0 then
    local message = ffi.string(C.ms_error_message())
    C.ms_error_clear()
    errors.raise(ffi.string(C.ms_status_name(status)), "%s: %s", message, needed)
  end
  local read = ffi.string(text[0], tonumber(bytes[0]))
  C.ms_file_text_free(text[0])
  return read
end

return input_file
