-- Texts in a field of JSON lines and lists, for ms.data.text and `moonshard tokenize`: each is a document, and what is
-- not clearly a text is refused.

local ffi = require("ffi")
local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local streams = require("moonshard.data.stream")

ffi.cdef [[
  size_t ZSTD_compress(void *to, size_t capacity, const void *from, size_t bytes, int level);
  int setenv(const char *name, const char *value, int overwrite);
]]

local TOKENIZER = "tests/fixtures/tokenizer/good/gpt2.json"

local function compress(plain)
  local room = ffi.new("uint8_t[?]", #plain + 2 ^ 16)
  return ffi.string(room, ffi.load("libzstd.so.1").ZSTD_compress(room, #plain + 2 ^ 16, plain, #plain, 3))
end

local folder

local function write(name, text)
  scratch.write(folder .. "/" .. name, text)
  return folder .. "/" .. name
end

local function data(files, more)
  local o = { files = files, seq = 1, batch = 1, valid_fraction = 0, shuffle = false }
  for name, value in pairs(more or {}) do o[name] = value end
  return ms.data.text(o)
end

-- All bytes but the last, which is only a target.
local function text(files, more)
  local found = {}
  for _, batch in data(files, more):batches() do found[#found + 1] = string.char(batch.tokens.data[0]) end
  return table.concat(found)
end

local LINES = '{"text": "one", "id": 1}\n\n{"text": "zw\\u00f6 \\"2\\"\\n"}\n{"text": ""}\n'
  .. '{"text": "three", "url": "u"}\n'

describe("texts of JSON", function()
  before_each(function()
    folder = scratch.folder()
    ffi.C.setenv("XDG_CACHE_HOME", scratch.folder(), 1)
  end)
  after_each(scratch.clear)

  it("G5 are one text of bytes, with a separator after each document", function()
    local wanted = 'one\nzw\195\182 "2"\n\n\nthree'
    local list = "[" .. LINES:gsub("\n+", ",\n"):gsub(",\n$", "") .. "]"
    for name, contents in pairs({ ["a.jsonl"] = LINES, ["b.ndjson"] = LINES, ["c.json"] = list, ["d.json"] = LINES,
      ["e.jsonl.zst"] = compress(LINES), ["f.jsonl"] = list }) do
      assert.equal(wanted, text(write(name, contents)), name)
      os.remove(folder .. "/" .. name)
    end
    local path = write("a.jsonl", LINES)
    assert.equal("one--zw\195\182 \"2\"\n----three-", text(path, { separator = "--" }))
    assert.equal("onezw\195\182 \"2\"\nthre", text(path, { separator = "" }))
    write("b.txt", "text")
    assert.equal(wanted .. "\ntex", text(folder))
    assert.equal(#LINES, data(path, { raw = true }).bytes)
  end)

  it("G5 are those of another field, and of a file under another name, where that is given", function()
    local lines = LINES:gsub('"text"', '"content"')
    for _, name in ipairs({ "a.jsonl", "a.txt", "a" }) do
      assert.equal('one\nzw\195\182 "2"\n\n\nthree', text(write(name, lines), { field = "content" }))
    end
    assert.equal("one\n", text(write("b.jsonl", '{"a": "one", "b": ""}\n{"a": "", "b": "x"}\n'), { field = "a" }))
    has(message(data, write("c.txt", "plain"), { field = "text" }), "field | JSON lines")
    has(message(data, write("c.txt", "plain"), { separator = "x" }), "separator | JSON lines")
    has(message(data, folder .. "/a.jsonl", { field = "content", raw = true }), "raw | field")
  end)

  it("U10 are refused with line and field where a document has none, and where more than a text is meant", function()
    local function refused(second, more) return message(data, write("a.jsonl", '{"text": "x"}\n' .. second), more) end
    has(refused '{"content": "y", "id": "i"}', "a.jsonl:2: | field text | field = | content, id")
    has(refused '{"texts": "y"}', "a.jsonl:2: | texts")
    has(refused '{"text": null}', "a.jsonl:2: text | null")
    has(refused '{"text": ["y"]}', "a.jsonl:2: text | table")
    has(refused '{"text": 3}', "a.jsonl:2: text | 3")
    has(refused('{"text": "y"', nil), "a.jsonl:2: byte")
    has(refused('{"text": "\255"}', nil), "a.jsonl:2: | UTF-8")
    has(refused('{"body": "y"}', { field = "body" }), "a.jsonl:1: | field body | text")
    for _, line in ipairs({ '{"text": "y", "messages": [{"role": "user", "content": "Q"}]}',
      '{"text": "y", "instruction": "Q", "output": "A"}', '{"text": "y", "chosen": "A", "rejected": "B"}' }) do
      has(refused(line), "a.jsonl:2: | ms.data.chat | ms.data.preferences | field = NAME")
      assert.equal("x\ny", text(folder .. "/a.jsonl", { field = "text" }))
    end
    has(message(data, write("b.txt", LINES)), 'b.txt | JSON lines | field = "text" | jq')
    has(message(data, write("b.jsonl", "PAR1\21\4")), "b.jsonl | Parquet | read_parquet | to_json")
  end)

  it("G5 are documents of a token file, encoded each for itself, whatever the number of threads", function()
    local tokenizer = ms.tokenizer(TOKENIZER)
    local stop = tokenizer:id("<|endoftext|>")
    local texts, lines, wanted = {}, {}, {}
    for i = 1, 900 do
      texts[i] = i % 50 == 0 and ("word \195\182 " .. i .. "\n"):rep(4000) or (" the ones "):rep(i % 7) .. i
      lines[i] = ('{"text": "%s"}'):format(texts[i]:gsub("\n", "\\n"))
      for _, id in ipairs(tokenizer:encode(texts[i])) do wanted[#wanted + 1] = id end
      wanted[#wanted + 1] = stop
    end
    local path = write("docs.jsonl", table.concat(lines, "\n"))
    for _, threads in ipairs({ "1", "3" }) do
      local ended = program.run { "tokenize", "--tokenizer", TOKENIZER, "--end", "<|endoftext|>", "-j", threads, path }
      assert.equal(0, ended.status, ended.err)
      local stream = streams.open({ folder .. "/docs.bin" }, "MS_TOKEN_FILES")
      assert.equal(#wanted, stream.tokens)
      local got = stream:read(0, stream.tokens)
      for i = 1, #wanted do
        if got[i] ~= wanted[i] then assert.equal(wanted[i], got[i], "token " .. i) end
      end
      os.remove(folder .. "/docs.bin")
    end
  end)

  it("U10 need a token that tells them apart, a file of their own kind, and UTF-8", function()
    local path = write("docs.jsonl", '{"body": "a"}\n{"body": "b"}\n')
    local function run(...)
      local ended = program.run { "tokenize", "--tokenizer", TOKENIZER, "--out", folder .. "/out.bin", ... }
      return ended.status, ended.err .. ended.out
    end
    local function refused(facts, ...)
      local status, said = run(...)
      assert.equal(2, status)
      has(said, facts)
    end
    refused("documents | --end | --begin", "--field", "body", path)
    refused("docs.jsonl:1: | field text | --field | body", "--end", "<|endoftext|>", path)
    refused("1 of 2 files", "--field", "body", "--end", "<|endoftext|>", path, write("a.txt", "text"))
    refused("--replace-invalid | JSON", "--replace-invalid", "--field", "body", "--end", "<|endoftext|>", path)
    refused("--field | JSON", "--field", "body", folder .. "/a.txt")
    refused("b.txt | --field", "--end", "<|endoftext|>", write("b.txt", '{"text": "a"}\n{"text": "b"}\n'))
    for tokens, around in pairs({ [4] = { "--end", "<|endoftext|>" }, [6] = { "--end", "<|endoftext|>", "--begin",
      "<|endoftext|>" } }) do
      local status, said = run("--json", "--field", "body", path, unpack(around))
      assert.equal(0, status, said)
      has(said, ('"tokens":%d'):format(tokens))
    end
  end)
end)

describe("a web page", function()
  it("U10 is text under its own name, and else came in place of the data", function()
    folder = scratch.folder()
    for _, page in ipairs({ "<!DOCTYPE html>\n<html>", "\n<!doctype HTML>", "<html lang='en'>" }) do
      has(message(data, write("a.txt", page .. " text")), "a.txt: | web page | fetch | raw = true")
      assert.equal(#page + 5, data(write("a.html", page .. " text")).bytes)
      has(message(ms.data.chat, { files = write("a.jsonl", page), seq = 4, batch = 1 }), "a.jsonl: | web page")
    end
    local fault = '<?xml version="1.0"?>\n<Error><Code>x</Code></Error>'
    has(message(data, write("a.txt", fault)), "a.txt: | server's error")
    assert.equal(#fault, data(write("a.xml", fault)).bytes)
    scratch.clear()
  end)
end)
