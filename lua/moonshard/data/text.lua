-- Text by bytes: the token of a byte is its value, so the vocabulary is 256 and the loss is in nats per byte. JSON
-- lines give the texts of one field, with a line end after each.

local json_texts = require("moonshard.data.files.json_texts")
local streams = require("moonshard.data.stream")
local text_files = require("moonshard.data.files.text_files")
local windows = require("moonshard.data.windows")
local world = require("moonshard.distributed.world")

---@class moonshard.TextOptions
---@field files string|string[] paths, folders or patterns; a string can list several, separated by commas or blanks;
---  files that zstd compressed are decompressed
---@field field? string the field of JSON lines and lists that has the texts; "text", of files that are named .jsonl,
---  .ndjson or .json; other files of JSON are read where it is given. What else a line has is not read
---@field separator? string what follows each text of JSON, since bytes have no token that ends one; "\n"
---@field raw? boolean take the bytes of any file, also of JSON and of other formats; false
---@field seq? integer bytes a sequence; 256
---@field batch? integer sequences a rank and step; 8
---@field global_batch? integer sequences of all ranks a step, instead of batch
---@field seed? integer of the order of samples; 0
---@field shuffle? boolean true; false: in the order of the text
---@field drop_last? boolean true: the samples that do not fill an epoch's last step begin the next epoch; false: that
---  step is padded with rows without targets. Validation data is always padded, so that a pass has every sample once
---@field valid_fraction? number of the windows that are held out for validation; 0.05; 0: none, and no data.valid
---@field mesh? moonshard.Mesh whose ranks share the samples; all ranks of the world

---@class moonshard.TextData: moonshard.Loader
---@field bytes number of the text
---@field valid moonshard.Loader? the validation data; every call of its batches starts with the same samples

---Batches { tokens, targets } of text: i32 [batch, seq] each, targets the tokens moved by one byte.
---@param o moonshard.TextOptions
---@return moonshard.TextData
local function text(o)
  local who = "ms.data.text"
  o = windows.parse(who, o, {
    valid_fraction = { "number", default = 0.05 }, raw = { "boolean" }, field = { "string" }, separator = { "string" },
  })
  windows.share(who, o)
  local json = json_texts.of_options(who, o)
  local stream, bytes, read_from
  if world.plan_only then
    bytes = windows.tokens_needed(o)
  else
    local paths, shown = text_files.find(o.files, o.raw, json)
    json.check_used()
    stream = streams.open(paths, "MS_TOKEN_BYTES", shown)
    bytes = stream.tokens
    read_from = windows.read_from(#paths, bytes, "byte")
    windows.check_size(who, o.files, "bytes", bytes, o)
  end
  local data = windows.loaders(o, stream, bytes)
  data.bytes, data.read_from = bytes, read_from
  return data
end

return text
