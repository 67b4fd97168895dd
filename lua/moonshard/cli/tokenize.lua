-- moonshard tokenize: converts text files, and the texts of JSON lines, to a token file that ms.data.tokens and llm.c
-- read, and back to text.

local clock = require("moonshard.base.clock")
local command_line = require("moonshard.cli.options.command_line")
local decompressed = require("moonshard.data.files.decompressed")
local files = require("moonshard.data.files.files")
local json = require("moonshard.base.text.json")
local json_texts = require("moonshard.data.files.json_texts")
local output_file = require("moonshard.base.files.output_file")
local progress = require("moonshard.base.text.progress")
local status = require("moonshard.base.exit_status")
local streams = require("moonshard.data.stream")
local text_files = require("moonshard.data.files.text_files")
local text_lines = require("moonshard.base.text.text_lines")
local token_files = require("moonshard.data.files.token_files")
local tokenizers = require("moonshard.data.tokenizer")
local refuse = status.refuse

local tokenize = {}

local OPTIONS = {
  ["--tokenizer"] = { name = "tokenizer", value = "text", what = "a tokenizer.json, or a folder that holds one" },
  ["--out"] = { name = "out", value = "text", what = "a file" },
  ["--begin"] = { name = "begin", value = "text", what = "a token" },
  ["--end"] = { name = "finish", value = "text", what = "a token" },
  ["--field"] = { name = "field", value = "text", what = "a field of JSON lines" },
  ["-j"] = { name = "threads", value = "count" },
  ["--replace-invalid"] = { name = "replace_invalid", value = "flag" },
  ["--raw"] = { name = "raw", value = "flag" },
  ["--decode"] = { name = "decode", value = "flag" },
  ["--json"] = { name = "json", value = "flag" },
}

local AT_ONCE = 65536 -- tokens per decoding call

local DOCUMENT_END = "\255" -- no byte of UTF-8, and so of no text in JSON

local function out_of(line)
  if not line.out and #line.files > 1 then
    refuse("MS_EINVAL", "moonshard tokenize: name the output for the tokens of %d files: --out FILE.bin", #line.files)
  end
  local out = line.out or (line.files[1]:gsub("%.[^./]*$", "")) .. ".bin"
  local there = files.real_path(out)
  for i = 0, #line.files do
    local file = line.files[i] or line.tokenizer
    if there and there == files.real_path(file) then
      refuse("MS_EINVAL", "moonshard tokenize: the output would overwrite %s: name another with --out FILE.bin",
        file)
    end
  end
  return out
end

local function decode(tokenizer, paths)
  for _, path in ipairs(paths) do
    if files.bytes(path) then token_files.check(path) end
  end
  local stream = streams.open(decompressed.paths(paths), "MS_TOKEN_FILES", paths)
  for first = 0, stream.tokens - 1, AT_ONCE do
    io.write(tokenizer:decode(stream:read(first, math.min(AT_ONCE, stream.tokens - first))))
  end
  return status.OK
end

local function reads_json(line) return function(path) return json_texts.reads(path, line.field) end end

-- The files of JSON, of which each object is a document; a file of text is one.
local function count_json(line)
  local count, reads = 0, reads_json(line)
  for _, path in ipairs(line.raw and {} or line.files) do
    if files.bytes(path) then
      text_files.check(path, "--raw", nil, reads)
      if reads(path) then count = count + 1 end
    end
  end
  return count
end

local function check_json(line, count)
  if count == 0 then
    if line.field then refuse("MS_EINVAL", "moonshard tokenize: --field is of JSON lines, and no file has them") end
    return
  end
  if count < #line.files then
    refuse("MS_EINVAL", "moonshard tokenize: %d of %d files have JSON, whose lines are documents, and a file of text "
      .. "is one: tokenize them apart", count, #line.files)
  end
  if line.replace_invalid then
    refuse("MS_EINVAL", "moonshard tokenize: --replace-invalid is not for JSON, which is UTF-8: convert the file")
  end
  if not line.begin and not line.finish then
    refuse("MS_EINVAL", "moonshard tokenize: nothing would tell the documents of JSON apart: name the token that ends "
      .. "each, --end '<|endoftext|>' or what the tokenizer calls it, or that begins each, --begin TOKEN")
  end
end

-- The texts of files, decompressed, and whether each has several documents. What is no regular file the engine refuses.
local function texts_of(line)
  local count = count_json(line)
  check_json(line, count)
  if count == 0 then return decompressed.paths(line.files), false end
  local paths = {}
  for i, path in ipairs(line.files) do
    paths[i] = json_texts.path(path, { field = line.field, ends = DOCUMENT_END, flag = "--field" })
  end
  return paths, true
end

local function encode(tokenizer, line, out)
  local began, cpu_began = clock.now(), os.clock()
  local paths, documents = texts_of(line)
  local done = tokenizer:tokenize_files(paths, out, {
    begin = line.begin, finish = line.finish, threads = line.threads, replace_invalid = line.replace_invalid,
    documents = documents,
  })
  local seconds = clock.now() - began
  if line.json then
    print(json.encode({
      out = out, files = #line.files, bytes = done.bytes, tokens = done.tokens, token_bytes = done.width,
      seconds = seconds, cpu_seconds = os.clock() - cpu_began,
    }))
  else
    print(("%s: %d tokens of %d bits from %s in %d file%s, %.2f bytes per token, %.0f MB/s"):format(
      text_lines.escape(out), done.tokens, 8 * done.width, progress.size(done.bytes), #line.files,
      #line.files == 1 and "" or "s", done.bytes / math.max(done.tokens, 1), done.bytes / 1e6 / seconds))
  end
  return status.OK
end

---@param arguments string[] without "tokenize"
---@return integer exit status
function tokenize.main(arguments)
  local line = command_line.parse("moonshard tokenize", arguments, { files = true, options = OPTIONS })
  if not line.tokenizer then refuse("MS_EINVAL", "moonshard tokenize needs --tokenizer tokenizer.json") end
  if not line.files[1] then refuse("MS_EINVAL", "moonshard tokenize needs a file to read") end
  require("moonshard.base.ffi").C.ms_interrupt_install()
  local out = not line.decode and out_of(line)
  if out then output_file.check_option("--out", out) end
  local tokenizer = tokenizers.open(line.tokenizer)
  if line.decode then return decode(tokenizer, line.files) end
  return encode(tokenizer, line, out)
end

return tokenize
