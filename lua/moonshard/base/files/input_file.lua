-- Reads whole files. Data files named by a user must be regular files (input_file.read): opening a pipe without a
-- writer would block, and a folder would read as an empty file.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local C, ffi = engine.C, engine.ffi

ffi.cdef "int access(const char *path, int mode);"

local input_file = {}

---Whether a path exists.
---@param path string
---@return boolean
function input_file.exists(path) return ffi.C.access(path, 0) == 0 end

---The bytes of a file, a pipe or a file in /proc, for callers that handle a missing file themselves.
---@param path string
---@return string? text nil if it cannot be read
---@return string? why "x.lua: No such file or directory"
function input_file.text(path)
  local file, why = io.open(path, "rb")
  if not file then return nil, why end
  local text, failed = file:read("*a")
  file:close()
  if not text then return nil, ("%s: %s"):format(path, failed or "it cannot be read") end
  return text
end

---The bytes of a file. Raises MS_EINVAL if it does not exist or is not a regular file, MS_EIO if reading fails.
---@param path string
---@param needed string why it is needed, for the message: "a folder of Hugging Face's layout has a config.json"
---@return string
function input_file.read(path, needed)
  local text, bytes = ffi.new("char *[1]"), ffi.new("int64_t[1]")
  local status = C.ms_file_read_text(path, text, bytes)
  if status ~= 0 then
    local message = ffi.string(C.ms_error_message())
    C.ms_error_clear()
    errors.raise(ffi.string(C.ms_status_name(status)), "%s: %s", message, needed)
  end
  local ok, read = pcall(ffi.string, text[0], tonumber(bytes[0]))
  C.ms_file_text_free(text[0])
  if not ok then errors.raise("MS_ENOMEM", "%s: not enough memory for its %.0f bytes", path, tonumber(bytes[0])) end
  return read
end

return input_file
