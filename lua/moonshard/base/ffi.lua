-- The engine's declarations, generated from moonshard.h, and the library that contains its functions.
--
-- The moonshard executable contains the engine, so ffi.C has its functions. A plain luajit loads the shared library:
-- the one in MOONSHARD_LIB, else the one installed with these files, else libmoonshard.so from the system's library
-- path.

local ffi = require("ffi")
local errors = require("moonshard.base.error")
local recipe_names = require("moonshard.base.names.recipe_names")

ffi.cdef(require("moonshard.cdef"))

local function in_executable()
  return pcall(function() return ffi.C.ms_abi_version end)
end

-- The path recorded by `make install` in installed.lua, relative to the folder moonshard/; nil in the source tree.
local function installed_library()
  local folder = debug.getinfo(1, "S").source:match("^@(.*/)base/ffi%.lua$")
  local place = folder and loadfile(folder .. "installed.lua")
  return place and folder .. place()
end

local function load_library()
  if in_executable() then return ffi.C end
  local ok, library = pcall(ffi.load, os.getenv("MOONSHARD_LIB") or installed_library() or "moonshard")
  if ok then return library end
  error(errors.new({
    status = "MS_EIO",
    message = ("cannot load the engine's library (%s); run `make install`, or set MOONSHARD_LIB to libmoonshard.so")
      :format((tostring(library):gsub("\n.*", ""))),
  }), 0)
end

local C = load_library()

local function check_abi()
  local library, declared = C.ms_abi_version(), tonumber(C.MS_ABI_VERSION)
  if library == declared then return end
  error(errors.new({
    status = "MS_EUNSUPPORTED",
    message = ("the engine has ABI version %d, but the Lua files need %d: install both from the same build")
      :format(library, declared),
  }), 0)
end
check_abi()

---Raises the engine's error if a status is not MS_OK, with the recipe's file and line and the module path, and with its
---names of settings.
---@param status integer returned by a function of moonshard.h
---@param edit? fun(message: string): string changes its message
local function check(status, edit)
  if status == 0 then return end
  local message, where = ffi.string(C.ms_error_message()), ffi.string(C.ms_error_where())
  if C.ms_error_code() ~= status then message, where = "the engine failed without an error message", "" end
  message = recipe_names.of_engine(edit and edit(message) or message)
  errors.raise_c(status, ffi.string(C.ms_status_name(status)), message, where)
end

---A struct that begins with struct_size, filled with its defaults.
---@param type string "ms_plan_config"
---@return ffi.cdata*
local function config(type)
  local made = ffi.new(type)
  check(C.ms_config_default(type, made, ffi.sizeof(made)))
  return made
end

return {
  C = C,
  version = ffi.string(C.ms_version()),
  ffi = ffi,
  check = check,
  config = config,
}
