-- Megatron's pairs of files as data: what their index says, every fault of it by name, either name for both files, and
-- values that are no tokens. tests/fixtures/tokens/make.py makes the pairs.

local ffi = require("ffi")
local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local streams = require("moonshard.data.stream")
local token_files = require("moonshard.data.files.token_files")

local FIXTURES = "tests/fixtures/tokens"

teardown(scratch.clear)

local function said(name) return json.decode(scratch.read(("%s/%s.json"):format(FIXTURES, name))) end

local function open(path) return streams.open({ path }, "MS_TOKEN_FILES") end

-- A copy of a pair in a folder.
local function copy(name, folder, as)
  for _, ending in ipairs({ ".idx", ".bin" }) do
    local bytes = scratch.read(("%s/good/%s%s"):format(FIXTURES, name, ending))
    scratch.write(folder .. "/" .. (as or name) .. ending, bytes)
  end
  return folder .. "/" .. (as or name)
end

local function data(files, more)
  local o = { files = files, seq = 2, batch = 1, shuffle = false, valid_fraction = 0 }
  for name, value in pairs(more or {}) do o[name] = value or nil end
  return ms.data.tokens(o)
end

describe("a pair of an index and tokens", function()
  it("K7 is one stream of tokens by either name, of integers of any width", function()
    for name, wanted in pairs(said("good")) do
      for _, ending in ipairs({ ".idx", ".bin" }) do
        local stream = open(("%s/good/%s%s"):format(FIXTURES, name, ending))
        assert.equal(#wanted.tokens, stream.tokens)
        assert.same(setmetatable(wanted.tokens, nil), stream:read(0, stream.tokens))
      end
    end
  end)

  it("K7 is refused where the index says what is not so, with the field", function()
    local count = 0
    for name, words in pairs(said("bad")) do
      local refused, raised = message(open, ("%s/bad/%s.idx"):format(FIXTURES, name))
      has(refused, ("%s.idx: | "):format(name) .. words)
      assert.is_truthy(raised.status == "MS_EINVAL" or raised.status == "MS_EUNSUPPORTED", raised.status)
      count = count + 1
    end
    assert.is_true(count >= 25)
  end)

  it("K7 is refused at any length but its own", function()
    local path = copy("i32", scratch.folder())
    local index = scratch.read(path .. ".idx")
    for length = 0, #index - 1 do
      scratch.write(path .. ".idx", index:sub(1, length))
      has(message(open, path .. ".idx"), path .. ".idx: ")
    end
    scratch.write(path .. ".idx", index)
    assert.equal(11, open(path .. ".idx").tokens)
    os.remove(path .. ".bin")
    has(message(open, path .. ".idx"), path .. ".bin")
  end)

  it("K7 has values that are no tokens named where they are read", function()
    for name, words in pairs(said("values")) do
      local stream = open(("%s/bad/%s.idx"):format(FIXTURES, name))
      assert.same({ 1, 2 }, stream:read(0, 2))
      has(message(stream.read, stream, 0, 3), words)
    end
  end)

  it("K7 is data once, by patterns, folders and lists, across files, with its documents", function()
    local folder = scratch.folder()
    local a, b = copy("u16", folder, "a"), copy("i32", folder, "b")
    for _, files in ipairs({ folder, folder .. "/*", folder .. "/*.idx", folder .. "/*.bin",
      { a .. ".idx", b .. ".bin" }, { a .. ".bin", a .. ".idx", b .. ".idx" }, { a, b }, { a, a .. ".bin", b } }) do
      local read = data(files)
      assert.equal(22, read.tokens)
      assert.equal(8, read.documents)
      local found = {}
      for _, batch in read:batches(10) do found[#found + 1] = batch.tokens.data[0] end
      assert.same({ 5, 7, 9, 11, 13, 127, 6, 8, 10, 12 }, found)
    end
    local llm = ffi.string(ffi.new("int32_t[256]", { 20240520, 1, 3 }), 1024) .. "\1\0\2\0\3\0"
    scratch.write(folder .. "/c.bin", llm)
    local read = data(folder)
    assert.equal(25, read.tokens)
    assert.is_nil(read.documents)
    -- A file with a header of its own needs no index, whatever lies beside it.
    scratch.write(folder .. "/c.idx", "other")
    assert.equal(3, data(folder .. "/c.bin").tokens)
    scratch.write(folder .. "/c.idx", ("other"):rep(20))
    has(message(data, folder .. "/c.idx"), folder .. "/c.idx: | MMIDIDX")
  end)

  it("K7 is not both trained on and validated, and not read compressed", function()
    local folder = scratch.folder()
    local path = copy("u16", folder)
    has(message(data, path .. ".idx", { valid_files = path .. ".bin", valid_fraction = false }),
      "valid_files | " .. path .. ".bin")
    for _, name in ipairs({ ".idx.zst", ".bin.zst" }) do
      scratch.write(path .. name, "")
      has(message(data, path .. name), path .. name .. ": | " .. path .. ".idx | decompress")
    end
  end)

  it("K7 is described by moonshard inspect, with its documents and sequences", function()
    for _, ending in ipairs({ ".idx", ".bin" }) do
      local ended = program.run { "inspect", FIXTURES .. "/good/i64" .. ending, "--end", "10" }
      assert.equal(0, ended.status, ended.err)
      has(ended.out, "11 tokens | i64 | 5 sequences | 4 documents | 127 | 1 token 10")
    end
    local ended = program.run { "inspect", FIXTURES .. "/bad/version.idx" }
    assert.equal(2, ended.status)
    has(ended.err, "version | 2")
  end)
end)

describe("a file in place of one of tokens", function()
  it("U10 is named by what it is", function()
    local folder = scratch.folder()
    for _, kind in ipairs({ { "Parquet", "PAR1\21\4" }, { "Arrow", "ARROW1\0\0" }, { "gzip", "\31\139\8\0" },
      { "xz", "\2537zXZ\0" }, { "zip", "PK\3\4" }, { "pickle", "\128\2}q" }, { "NumPy", "\147NUMPY\1\0" },
      { "web page", "<!DOCTYPE html>\n<html>" }, { "Git LFS", "version https://git-lfs.github.com/spec/v1\noid" },
      { "UTF-16", "\255\254a\0" }, { "server's error", '<?xml version="1.0"?>\n<Error><Code>x</Code></Error>' } }) do
      scratch.write(folder .. "/a.bin", kind[2] .. ("."):rep(2000))
      has(message(data, folder .. "/a.bin"), folder .. "/a.bin: | " .. kind[1])
      has(message(token_files.check, folder .. "/a.bin"), folder .. "/a.bin: | " .. kind[1])
    end
    scratch.write(folder .. "/a.bin", ("some words\n"):rep(200))
    has(message(data, folder .. "/a.bin"), "a.bin: magic | moonshard tokenize")
    scratch.write(folder .. "/a.bin", "PAR1\21\4")
    local ended = program.run { "tokenize", "--tokenizer", "tests/fixtures/tokenizer/good/gpt2.json", "--decode",
      folder .. "/a.bin" }
    assert.equal(2, ended.status)
    has(ended.err, folder .. "/a.bin: | Parquet | read_parquet")
  end)
end)
