-- Settings of a recipe: defaults that `key=value` on the command line overrides. The default determines the type.
--
--   local cfg = ms.args { layers = 6, lr = ms.args.real(1e-3), mesh = "2x2", betas = { 0.9, 0.95 }, compile = true }
--
-- An integer default accepts only integers; `real` marks an integer default that accepts fractions, `any` one that
-- accepts true, false, a number or text, as reshard_after_forward does, and `output` a file that will be written.
-- Every recipe also has the settings device ("cpu" or "cuda") and files (the text to train on), for which it can set
-- its own defaults.

local device = require("moonshard.distributed.device")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local output_file = require("moonshard.base.files.output_file")
local text_lines = require("moonshard.base.text.text_lines")
local world = require("moonshard.distributed.world")

---@class moonshard.args
---@overload fun(defaults: table<string, any>): table the defaults, with overrides applied
local args = {
  -- The overrides in the order of the command line: { { key = "steps", text = "20" }, ... }. Set by the command line.
  ---@type { key: string, text: string }[]
  overrides = {},
  -- Whether the recipe called ms.args.
  taken = false,
  -- The resulting settings, as text.
  ---@type table<string, string>
  texts = {},
}

---The text of Debian's `fortunes` package: 2.5 MB of English.
args.DEFAULT_FILES = "/usr/share/games/fortunes"

---@class moonshard.Real
---@field value number
local Real = {}

---A default that accepts any number, although it is an integer itself.
---@param value number
---@return moonshard.Real
function args.real(value)
  return setmetatable({ value = value }, Real)
end

---@class moonshard.AnyValue
---@field value number|string|boolean
local AnyValue = {}

---A default that accepts true, false, a number or text, recognised from the override's text.
---@param value number|string|boolean
---@return moonshard.AnyValue
function args.any(value)
  return setmetatable({ value = value }, AnyValue)
end

---@class moonshard.Output
---@field value string
local Output = {}

---A default for the path of a file that the recipe writes at its end; "" means no file. Rank 0 checks that the file can
---be written when the settings are read, before training.
---@param path string
---@return moonshard.Output
function args.output(path)
  return setmetatable({ value = path }, Output)
end

local MARKS = { [Real] = true, [AnyValue] = true, [Output] = true }

local function is_marked(default)
  return MARKS[getmetatable(default)] or false
end

local SWITCHES = {
  ["true"] = true, yes = true, on = true, ["1"] = true, ["false"] = false, no = false, off = false, ["0"] = false,
}

local function refuse(key, text, expected)
  errors.invalid("setting %s=%s: it must be %s", key, text, expected)
end

-- A number that is too small for a double reads as 0, which means something else: "off", mostly.
local function refuse_underflow(key, text, number)
  local digits = number == 0 and text:match("^%s*[+-]?([%d.]+)")
  if not digits or not digits:find("[1-9]") or text:find("^%s*[+-]?0[xX]") then return end
  refuse(key, text, "0 or a number of at least 5e-324, the least that there is")
end

local function read_number(key, text, default)
  local number = tonumber(text)
  refuse_underflow(key, text, number)
  local finite = number and number - number == 0
  if default % 1 == 0 then
    if not finite then refuse(key, text, ("a whole number, like %d"):format(default)) end
    if math.abs(number) >= 2 ^ 53 then refuse(key, text, "a whole number below 2^53, 9007199254740992") end
    if number % 1 ~= 0 then
      refuse(key, text, ("a whole number, like its default %d; if the recipe takes fractions, too, it has to say "
        .. "%s = ms.args.real(%d)"):format(default, key, default))
    end
  elseif not finite then
    refuse(key, text, ("a number, like %g"):format(default))
  end
  return number
end

local function read_real(key, text, default)
  return read_number(key, text, default % 1 == 0 and 0.5 or default)
end

local function read_any(key, text)
  if text == "true" or text == "false" then return text == "true" end
  local number = text:match("^[+-]?%.?%d") and tonumber(text)
  refuse_underflow(key, text, number)
  return number or text
end

local read_value

-- "a,b,c"; if the default is a list of numbers also "2x2", the notation of meshes.
local function read_list(key, text, default)
  local sample = default[1]
  local separators = type(sample) == "number" and not text:find(",", 1, true) and "x" or ","
  local list = {}
  for part in (text .. separators):gmatch("(.-)" .. separators) do
    part = text_lines.trim(part)
    if part == "" and type(sample) == "number" then refuse(key, text, "numbers separated by commas, like 2,2") end
    if part == "" and text ~= "" then refuse(key, text, "items separated by commas, none of them empty") end
    if part ~= "" or type(sample) == "number" then
      list[#list + 1] = sample == nil and part or read_value(key, part, sample)
    end
  end
  return list
end

function read_value(key, text, default)
  local kind = type(default)
  if kind == "number" then
    return read_number(key, text, default)
  elseif kind == "boolean" then
    local value = SWITCHES[text:lower()]
    if value == nil then refuse(key, text, "true or false") end
    return value
  elseif getmetatable(default) == Real then
    return read_real(key, text, default.value)
  elseif getmetatable(default) == AnyValue then
    return read_any(key, text)
  elseif getmetatable(default) == Output then
    return text
  elseif kind == "table" then
    return read_list(key, text, default)
  end
  return text
end

local function check_defaults(defaults)
  if type(defaults) ~= "table" then errors.invalid("ms.args takes a table of defaults, not %s", type(defaults)) end
  for key, default in pairs(defaults) do
    if type(key) ~= "string" then
      errors.invalid("ms.args: every default needs a name: write { steps = 200 }, not { %s }", tostring(default))
    end
    local kind = type(default)
    if kind ~= "number" and kind ~= "boolean" and kind ~= "string" and kind ~= "table" then
      errors.invalid("ms.args: the default of %s must be a number, text, true or false, or a list, not a %s", key, kind)
    end
  end
end

local function text_of(value)
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for i, part in ipairs(value) do parts[i] = tostring(part) end
  return table.concat(parts, ",")
end

-- Reading an unknown setting is an error: the nil could be mistaken for "off".
local Settings = {}

function Settings:__index(name)
  errors.raise("MS_ENAME", "this recipe has no setting %s: %s", tostring(name), nearest.advice(name, self))
end

local function check_outputs(typed, settings)
  for key, default in pairs(typed) do
    local wanted = getmetatable(default) == Output and settings[key] ~= ""
    if wanted and not world.plan_only and world.rank == 0 then
      output_file.check(("setting %s: file"):format(key), settings[key])
    end
  end
end

---The settings of a recipe: its defaults, overridden by the command line. Unknown keys and values of the wrong type are
---errors.
---@param defaults table<string, number|string|boolean|table|moonshard.Real|moonshard.AnyValue|moonshard.Output>
---@return table settings a new table with the keys of defaults, `device` and `files`
local function parse(defaults)
  check_defaults(defaults)
  local typed = { device = device.default, files = args.DEFAULT_FILES }
  for key, default in pairs(defaults) do
    typed[key] = default
  end
  local settings = {}
  for key, default in pairs(typed) do
    if is_marked(default) then default = default.value end
    settings[key] = default
  end
  for _, override in ipairs(args.overrides) do
    local default = typed[override.key]
    if default == nil then
      local other = require("moonshard.base.names.other_names").of_option(override.key, typed)
      local advice = nearest.advice(override.key, typed)
      if other and other:find("^did you mean") then other, advice = nil, other end
      if nearest.called_here(override.key, typed) then other = nil end
      errors.raise("MS_ENAME", "this recipe has no setting %s: %s", override.key,
        other and other .. "; " .. advice or advice)
    end
    settings[override.key] = read_value(override.key, override.text, default)
  end
  device.kind(settings.device, "setting device")
  check_outputs(typed, settings)
  args.taken = true
  for key, value in pairs(settings) do args.texts[key] = text_of(value) end
  return setmetatable(settings, Settings)
end

-- What recipes preset, before anything of the command line.
local presets = 0

---Sets a setting as the command line does, before what that sets: what the prompt saves begins with its session's.
---@param text string "lr=0.5"
function args.preset(text)
  local key, value = tostring(text):match("^([%w_]+)=(.*)$")
  if not key then errors.invalid("ms.args.preset: give a setting as on the command line, lr=0.5, not %s", text) end
  if args.taken then errors.invalid("ms.args.preset: call it before ms.args") end
  presets = presets + 1
  table.insert(args.overrides, presets, { key = key, text = value })
end

---Refuses overrides if the recipe never called ms.args. Called when a recipe has ended or its plan was made.
function args.check_taken()
  local first = args.overrides[1]
  if first and not args.taken then
    errors.raise("MS_ENAME", "this recipe takes no settings up to here, so %s=%s has no effect: call ms.args first",
      first.key, first.text)
  end
end

return setmetatable(args, {
  __call = function(_, defaults)
    return parse(defaults)
  end,
})
