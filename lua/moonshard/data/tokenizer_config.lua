-- A folder's tokenizer_config.json, where it changes what tokenizer.json says.
--
-- The reference library reads both files: tokens that only tokenizer_config.json names are added to the tokenizer, and
-- add_prefix_space overrides it. Here tokenizer.json is the tokenizer, so a difference is an error that names it. Where
-- add_bos_token or add_eos_token is true, its token is put at that end of a text if the post_processor does not; false
-- changes nothing. What else the file has concerns messages, padding and special tokens, which recipes give themselves.

local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")

local tokenizer_config = {}

local NAME = "tokenizer_config.json"
-- Classes that leave add_prefix_space to tokenizer.json.
local PLAIN = { PreTrainedTokenizerFast = true, TokenizersBackend = true }

-- The file next to a tokenizer.json, or in a folder.
local function config_path(path)
  local folder = path:match("^(.*)/[^/]*%.json$") or not path:find("%.json$") and path or "."
  return folder .. "/" .. NAME
end

local function refuse(path, text, ...)
  errors.raise("MS_EUNSUPPORTED", "%s: %s", path, text:format(...))
end

-- A token is a string, or an object whose content is one.
local function add(tokens, value)
  local token = type(value) == "table" and value.content or value
  if type(token) == "string" then tokens[#tokens + 1] = token end
end

-- All tokens that the file names, sorted.
local function tokens_of(config)
  local tokens = {}
  for field, value in pairs(config) do
    if field:find("^%l+_token$") then add(tokens, value) end
  end
  for _, field in ipairs({ "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens" }) do
    for _, value in pairs(type(config[field]) == "table" and config[field] or {}) do add(tokens, value) end
  end
  table.sort(tokens)
  return tokens
end

-- add_bos_token and add_eos_token: the token that each puts at one end of a text.
local ENDS = {
  { field = "add_bos_token", token = "bos_token", name = "before" },
  { field = "add_eos_token", token = "eos_token", name = "behind" },
}

local function read_ends(path, config, find)
  local ends = {}
  for _, row in ipairs(ENDS) do
    local asked, named = config[row.field], {}
    if asked ~= nil and asked ~= json.null and type(asked) ~= "boolean" then
      errors.invalid("%s: %s must be true or false, not %s", path, row.field, options.describe(asked))
    end
    add(named, config[row.token])
    if asked == true and not named[1] then
      refuse(path, "%s is true, but there is no %s: name the token, or remove the field", row.field, row.token)
    end
    ends[row.name] = asked == true and find(named[1]) or nil
  end
  return ends
end

---Reads the tokenizer_config.json of a folder. Raises where it says other tokens than its tokenizer.json.
---@param path string of tokenizer.json or of its folder
---@param find fun(token: string): integer the id in tokenizer.json, negative if it has none
---@return { before: integer?, behind: integer? } ends the tokens that it adds at the ends of a text
function tokenizer_config.read(path, find)
  path = config_path(path)
  if not input_file.exists(path) then return {} end
  local text = input_file.read(path, "the tokenizer's folder has one")
  local config, why = json.decode(text)
  if type(config) ~= "table" then errors.invalid("%s: not a JSON object: %s", path, why or "it is another value") end
  if config.add_prefix_space and not PLAIN[config.tokenizer_class] then
    refuse(path, "add_prefix_space = true begins every text with a space, which is not supported: if the model does "
      .. "not need it, remove the field")
  end
  for _, token in ipairs(tokens_of(config)) do
    if find(token) < 0 then
      refuse(path, "the token %s is not in tokenizer.json, so text that has it would be cut into pieces: save the "
        .. "tokenizer again with the library that made it, which writes all tokens into tokenizer.json", token)
    end
  end
  return read_ends(path, config, find)
end

return tokenizer_config
