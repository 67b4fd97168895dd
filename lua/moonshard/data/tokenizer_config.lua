-- The files next to a tokenizer.json, where they change what it says: tokenizer_config.json, and, unless that has an
-- added_tokens_decoder, special_tokens_map.json and added_tokens.json.
--
-- The reference library reads all of them: it adds tokens that only they name, takes the blanks around others, cuts
-- special ones into pieces, begins texts with a space, writes them in lower case. Here tokenizer.json is the
-- tokenizer, so a difference is an error that names it. The tokens around a text are those of its post_processor, as in
-- the reference library; an add_bos_token or add_eos_token that disagrees has no effect, and a warning says so. What
-- else they hold concerns messages and padding, which recipes give themselves.

local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")

local tokenizer_config = {}

-- Classes that leave add_prefix_space to tokenizer.json.
local PLAIN = { PreTrainedTokenizerFast = true, TokenizersBackend = true }
-- Fields that have several tokens, besides those that are named *_token.
local SEVERAL = {
  "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens",
}
-- Flags of a token: it takes the blanks before or after it, or is none within a word.
local FLAGS = { "lstrip", "rstrip", "single_word" }

local function refuse(path, text, ...)
  errors.raise("MS_EUNSUPPORTED", "%s: %s", path, text:format(...))
end

-- A file of the folder, { path, fields }; nil without it.
local function read_file(folder, name)
  local path = folder .. "/" .. name
  if not input_file.exists(path) then return nil end
  local fields, why = json.decode_strictly(input_file.read(path, "the tokenizer's folder has one"))
  if type(fields) ~= "table" or fields[1] ~= nil then
    errors.invalid("%s: not a JSON object: %s", path, why or "it is another value")
  end
  return { path = path, fields = fields }
end

-- The files that count, a later one's fields in place of an earlier one's; and the tokens of added_tokens.json.
local function read_files(folder)
  local files, config = {}, read_file(folder, "tokenizer_config.json")
  files[1] = config
  if config and config.fields.added_tokens_decoder ~= nil then return files end
  files[#files + 1] = read_file(folder, "special_tokens_map.json")
  return files, read_file(folder, "added_tokens.json")
end

-- The value of a field, and the path of its file.
local function field_of(files, name)
  for i = #files, 1, -1 do
    local value = files[i].fields[name]
    if value ~= nil then return value, files[i].path end
  end
end

-- A token is a string, or an object whose content is one.
local function content_of(value)
  local token = type(value) == "table" and value.content or value
  return type(token) == "string" and token ~= "" and token or nil
end

-- All tokens that the files name: { path, token, flags }, sorted. The flags of one that is named *_token are those of
-- tokenizer.json.
local function tokens_of(files, added)
  local tokens = {}
  local function add(path, value, flags)
    local token = content_of(value)
    flags = flags and type(value) == "table" and value or nil
    if token then tokens[#tokens + 1] = { path = path, token = token, flags = flags } end
  end
  for _, file in ipairs(files) do
    for field, value in pairs(file.fields) do
      if type(field) == "string" and field:find("_token$") and select(2, field_of(files, field)) == file.path then
        add(file.path, value)
      end
    end
    for _, field in ipairs(SEVERAL) do
      local several = file.fields[field]
      for _, value in pairs(type(several) == "table" and several or {}) do add(file.path, value, true) end
    end
  end
  for token in pairs(added and added.fields or {}) do add(added.path, token) end
  table.sort(tokens, function(a, b) return a.token < b.token end)
  return tokens
end

local AGAIN = "save the tokenizer again with the library that made it, which writes all tokens into tokenizer.json"

local function check_token(found, find)
  local id, known = find(found.token)
  if id < 0 then
    refuse(found.path, "the token %s is not in tokenizer.json, so text that has it would be cut into pieces: %s",
      found.token, AGAIN)
  elseif not known then
    refuse(found.path, "the token %s is in the vocabulary of tokenizer.json, but not one of its added_tokens, so text "
      .. "that has it would be cut into pieces: %s", found.token, AGAIN)
  end
  for _, flag in ipairs(found.flags and FLAGS or {}) do
    local asked = found.flags[flag]
    if type(asked) == "boolean" and asked ~= known[flag] then
      refuse(found.path, "%s is %s for the token %s, and %s in tokenizer.json: make them equal", flag, tostring(asked),
        found.token, tostring(known[flag]))
    end
  end
end

-- Whether the tokens of a text end with those of another.
local function ends_with(tokenizer, text, ending)
  local all, last = tokenizer:encode(text), tokenizer:encode(ending)
  for i = 0, #last - 1 do
    if all[#all - i] ~= last[#last - i] then return false end
  end
  return true
end

-- What changes how all texts are read.
local function check_fields(files, tokenizer)
  local spaced, spaced_by = field_of(files, "add_prefix_space")
  local split, split_by = field_of(files, "split_special_tokens")
  local lower, lower_by = field_of(files, "do_lower_case")
  -- Words lack the blanks around them.
  local has_words = tokenizer.model == "WordPiece" or tokenizer.model == "WordLevel"
  if type(spaced) == "boolean" and not has_words and not PLAIN[field_of(files, "tokenizer_class")] then
    local begins = ends_with(tokenizer, "x a", "a")
    if spaced ~= begins then
      refuse(spaced_by, "add_prefix_space is %s, and texts begin %s a space by tokenizer.json: if the model does not "
        .. "need the field, remove it", tostring(spaced), begins and "with" or "without")
    end
  end
  if type(lower) == "boolean" and tokenizer.model == "WordPiece" then
    local lowers = ends_with(tokenizer, "A B C D", "a b c d")
    if lower ~= lowers then
      refuse(lower_by, "do_lower_case is %s, and tokenizer.json %s texts in lower case: make them equal",
        tostring(lower), lowers and "writes" or "does not write")
    end
  end
  if split then
    refuse(split_by, "split_special_tokens = true cuts special tokens in a text into pieces, which is not supported: "
      .. "if the model does not need it, remove the field")
  end
end

-- The fields that name a token at one end of a text.
local ENDS = {
  { field = "add_bos_token", token = "bos_token", side = "before" },
  { field = "add_eos_token", token = "eos_token", side = "behind" },
}

-- A line for each field that asks for other tokens around a text than the post_processor puts there.
local function differences(files, find, tokenizer)
  local lines = {}
  for _, row in ipairs(ENDS) do
    local asked, path = field_of(files, row.field)
    local token = content_of((field_of(files, row.token)))
    local id, is_there = token and find(token), false
    for _, other in ipairs(tokenizer[row.side]) do is_there = is_there or other == id end
    if type(asked) == "boolean" and asked ~= is_there then
      lines[#lines + 1] = ("%s: %s is %s, which has no effect: the post_processor of tokenizer.json puts %s %s a text")
        :format(path, row.field, tostring(asked), (is_there and "" or "no ") .. (token or row.token), row.side)
    end
  end
  return lines
end

---The folder of a tokenizer.
---@param path string of a tokenizer.json, or of its folder
---@return string
function tokenizer_config.folder(path)
  return path:match("^(.*)/[^/]*%.json$") or not path:find("%.json$") and path or "."
end

-- The names that chat templates have for tokens.
local NAMED_TOKENS = { "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token" }

---What a folder's files say for chat templates.
---@param folder string
---@return table<string, string> tokens by name: bos_token and the like, as texts
---@return any template the field chat_template: a text, or a list of { name, template }
---@return string? path of the file that has the template
function tokenizer_config.for_templates(folder)
  local files, tokens = read_files(folder), {}
  for _, name in ipairs(NAMED_TOKENS) do tokens[name] = content_of((field_of(files, name))) end
  return tokens, field_of(files, "chat_template")
end

---Reads what is next to a tokenizer.json. Raises where it says other tokens.
---@param tokenizer moonshard.Tokenizer
---@param find fun(token: string): integer, table<string, boolean>? the id in tokenizer.json, negative if it has none;
---  and the flags of an added token
---@return string[] lines that name what has no effect on these
function tokenizer_config.read(tokenizer, find)
  local files, added = read_files(tokenizer_config.folder(tokenizer.path))
  for _, found in ipairs(tokens_of(files, added)) do check_token(found, find) end
  check_fields(files, tokenizer)
  return differences(files, find, tokenizer)
end

return tokenizer_config
