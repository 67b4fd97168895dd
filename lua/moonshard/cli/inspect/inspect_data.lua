-- The report of `moonshard inspect` on token files, text and tokenizers: rows of names and values.

local engine = require("moonshard.base.ffi")
local progress = require("moonshard.base.text.progress")
local streams = require("moonshard.data.stream")
local C, ffi, check = engine.C, engine.ffi, engine.check

local inspect_data = {}

local AT_ONCE = 2 ^ 20 -- tokens per read
-- The default end-of-document token, by bits per token: GPT-2's for 16 bits, Llama 3's for 32.
local ENDS = { [16] = { 50256, "GPT-2's <|endoftext|>" }, [32] = { 128001, "Llama 3's <|end_of_text|>" } }

-- Reads every token; returns the largest, the number equal to `wanted`, and the last.
local function scan(stream, wanted)
  local out, largest, found, last = ffi.new("int32_t[?]", AT_ONCE), -1, 0, -1
  for first = 0, stream.tokens - 1, AT_ONCE do
    local n = math.min(AT_ONCE, stream.tokens - first)
    check(C.ms_tokens_read(stream.handle, first, n, out))
    for i = 0, n - 1 do
      local id = out[i]
      if id > largest then largest = id end
      if id == wanted then found = found + 1 end
    end
    last = out[n - 1]
  end
  return largest, found, last
end

---@param path string
---@param o { all: boolean, finish: integer? } all: read every token; finish: the id that ends documents
---@param bits integer per token
---@param pair moonshard.TokenPair?
---@return table
function inspect_data.tokens(path, o, bits, pair)
  local stream = streams.open({ path }, "MS_TOKEN_FILES")
  local known = o.finish and { o.finish, "--end" } or ENDS[bits] or ENDS[32]
  local found = { path = path, kind = "token file", dtype = pair and pair.dtype or "u" .. bits, tokens = stream.tokens,
    bytes = stream.tokens * bits / 8 + (pair and 0 or 1024) }
  if pair then
    found.kind, found.index, found.sequences, found.documents = "token files", pair.index, pair.sequences,
      pair.documents
  end
  if o.all and stream.tokens > 0 then
    local largest, ends, last = scan(stream, known[1])
    found.largest, found.end_token, found.end_of, found.ends = largest, known[1], known[2], ends
    found.open_end = last ~= known[1]
  end
  return found
end

---@param path string
---@param o { all: boolean }
---@return table
function inspect_data.text(path, o)
  local stream = streams.open({ path }, "MS_TOKEN_BYTES")
  local found = { path = path, kind = "text", dtype = "u8", tokens = stream.tokens, bytes = stream.tokens }
  if o.all then
    local lines, last
    found.largest, lines, last = scan(stream, 10)
    found.lines = lines + (last == 10 and 0 or 1)
  end
  return found
end

-- Those that begin, end and pad texts.
local USUAL_TOKENS = {
  "<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "<s>", "</s>", "<bos>", "<eos>",
  "[CLS]", "[SEP]", "<pad>", "[PAD]",
}

---@param path string
---@return table
function inspect_data.tokenizer(path)
  local tokenizer = require("moonshard.data.tokenizer").open(path)
  local found = {
    path = path, kind = "tokenizer", model = tokenizer.model, vocab = tokenizer.vocab, largest = tokenizer.vocab - 1,
    special = {},
  }
  for _, text in ipairs(USUAL_TOKENS) do
    local id = C.ms_tokenizer_find(tokenizer.handle, text)
    if id >= 0 then found.special[#found.special + 1] = { token = text, id = id } end
  end
  return found
end

local function plural(n, what) return ("%.0f %s%s"):format(n, what, n == 1 and "" or "s") end

local function text_of_ends(found)
  if found.ends == 0 then
    return ("no token %d (%s); --end ID counts another"):format(found.end_token, found.end_of)
  end
  return ("%s %d (%s)%s"):format(plural(found.ends, "token"), found.end_token, found.end_of,
    found.open_end and "; the file does not end with one" or "")
end

---The first line, and rows of names and values.
---@param found table
---@return string head
---@return string[][] rows
function inspect_data.rows(found)
  if found.kind == "tokenizer" then
    local rows = { { "largest id", ("%d"):format(found.largest) } }
    for _, entry in ipairs(found.special) do rows[#rows + 1] = { entry.token, ("%d"):format(entry.id) } end
    return ("tokenizer: %s, ids below %d"):format(found.model, found.vocab), rows
  end
  local rows = {}
  if found.index then
    rows[1] = { "index", ("%s: %s, %s"):format(found.index, plural(found.sequences, "sequence"),
      plural(found.documents, "document")) }
  end
  if found.largest then rows[#rows + 1] = { "largest id", ("%d"):format(found.largest) } end
  if found.ends then rows[#rows + 1] = { "document ends", text_of_ends(found) } end
  if found.lines then rows[#rows + 1] = { "lines", ("%.0f"):format(found.lines) } end
  return ("%s: %s, %s, %s"):format(found.kind, plural(found.tokens, "token"), found.dtype, progress.size(found.bytes)),
    rows
end

return inspect_data
