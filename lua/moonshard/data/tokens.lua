-- Token files in the format of llm.c and `moonshard tokenize`, a header and tokens of 16 or 32 bits, and Megatron's
-- pairs NAME.idx and NAME.bin. Files are mapped.
--
-- Several files form one stream, in the given order; a window can begin in one file and end in the next. Documents
-- follow one another without padding, separated by end tokens if the files contain them.

local decompressed = require("moonshard.data.files.decompressed")
local errors = require("moonshard.base.error")
local files = require("moonshard.data.files.files")
local streams = require("moonshard.data.stream")
local token_files = require("moonshard.data.files.token_files")
local windows = require("moonshard.data.windows")
local world = require("moonshard.distributed.world")

---@class moonshard.TokenOptions
---@field files string|string[] paths, patterns ("train_*.bin") or folders (their .bin and .bin.zst files); a string can
---  list several; of a pair of Megatron's, NAME.idx and NAME.bin, either name or both
---@field valid_files? string|string[] files for validation, instead of a fraction of `files`
---@field seq? integer tokens per sequence; default 256
---@field batch? integer sequences per rank and step; default 8
---@field global_batch? integer sequences per step on all ranks, instead of batch
---@field seed? integer seed of the order of samples; default 0
---@field shuffle? boolean default true; false: in the order of the files
---@field drop_last? boolean true: the samples that do not fill an epoch's last step begin the next epoch; false: that
---  step is padded with rows without targets. Validation data is always padded, so that a pass has every sample once
---@field valid_fraction? number fraction of the windows held out for validation; default 0.05, or 0 with valid_files
---@field mesh? moonshard.Mesh its ranks share the samples; default: all ranks of the world

---@class moonshard.TokenData: moonshard.Loader
---@field tokens number tokens in the files
---@field documents number? documents in the files, if all are pairs of Megatron's
---@field valid moonshard.Loader? the validation data; every call of its batches starts with the same samples

local function is_token_file(path) return path:find("%.bin$") ~= nil or path:find("%.bin%.zst$") ~= nil end

local function any() return true end

-- Megatron's options name a pair of files by the beginning of both names.
local function pair_of(path)
  return not files.exists(path) and files.exists(path .. ".idx") and path .. ".idx" or path
end

-- A pattern selects all files that match; a folder contributes files that end in .bin, those of sub-folders too.
local function open(spec, option)
  local wanted = type(spec) == "string" and spec:find("[*?%[]") and any or is_token_file
  local paths = files.find(spec, wanted, ".bin", option)
  for i, path in ipairs(paths) do paths[i] = pair_of(path) end
  paths = token_files.once(paths)
  for _, path in ipairs(paths) do
    if not files.exists(path) then
      errors.invalid("%s: No such file or directory: `moonshard tokenize` converts text to token files", path)
    end
    token_files.check(path)
  end
  return streams.open(decompressed.paths(paths), "MS_TOKEN_FILES", paths), paths
end

-- What is trained on says nothing in a validation.
local function check_apart(who, trained, valid)
  local known = {}
  local function name_of(path) return files.real_path(token_files.index_of(path) or path) end
  for _, path in ipairs(trained) do known[name_of(path)] = path end
  for _, path in ipairs(valid) do
    local same = known[name_of(path)]
    if same then
      errors.invalid("%s: %s, in valid_files, is also in files%s: leave it out of one of them", who, path,
        same ~= path and (", as " .. same) or "")
    end
  end
end

---Batches { tokens, targets } of token files: i32 [batch, seq] each, targets are the tokens shifted by one.
---@param o moonshard.TokenOptions
---@return moonshard.TokenData
local function tokens(o)
  local who = "ms.data.tokens"
  o = windows.parse(who, o, { valid_files = { "string|table" }, valid_fraction = { "number" } })
  if o.valid_files and o.valid_fraction then
    errors.invalid("%s: give valid_files or valid_fraction, not both", who)
  end
  o.valid_fraction = o.valid_fraction or (o.valid_files and 0 or 0.05)
  windows.share(who, o)
  local stream, count, valid_stream, trained
  if world.plan_only then
    count = windows.tokens_needed(o)
  else
    local valid
    stream, trained = open(o.files, "files")
    count = stream.tokens
    windows.check_size(who, o.files, "tokens", count, o)
    if o.valid_files then
      valid_stream, valid = open(o.valid_files, "valid_files")
      check_apart(who, trained, valid)
      windows.check_validation(who, o.valid_files, "tokens", valid_stream.tokens, o)
    end
  end
  local data = windows.loaders(o, stream, count)
  data.tokens, data.read_from = count, trained and windows.read_from(#trained, count, "token")
  data.documents = trained and token_files.documents(trained)
  if o.valid_files then
    data.valid = windows.validation(o, valid_stream, valid_stream and valid_stream.tokens or count)
  end
  return data
end

return tokens
