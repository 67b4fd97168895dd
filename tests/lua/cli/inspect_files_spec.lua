-- moonshard inspect of what training reads in addition to models: token files, text, tokenizers; and of files that are
-- nothing of the kind.

local ffi = require("ffi")
local json = require("moonshard.base.text.json")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local folder

local function write(name, ...)
  local path = folder .. "/" .. name
  scratch.write(path, table.concat { ... })
  return path
end

local function numbers(ctype, list)
  local values = ffi.new(ctype .. "[?]", #list, list)
  return ffi.string(values, ffi.sizeof(values))
end

local function tokens_of(name, magic, version, ctype, list)
  return write(name, numbers("int32_t", { magic, version, #list }), ("\0"):rep(1012), numbers(ctype, list))
end

local function inspect(...)
  local ended = program.run({ "inspect", ... })
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

local function refused(...)
  local ended = program.run({ "inspect", ... })
  assert.equal(2, ended.status, ended.err)
  assert.equal(1, select(2, ended.err:gsub("\n", "")))
  return ended.err
end

describe("moonshard inspect", function()
  setup(function()
    folder = scratch.path()
    assert.equal(0, os.execute("mkdir " .. folder))
  end)
  teardown(scratch.clear)

  it("K7 prints dtype, tokens, the largest and document ends of token files", function()
    local gpt2 = tokens_of("gpt2.bin", 20240520, 1, "uint16_t", { 7, 50255, 50256, 1, 50256 })
    assert.equal(gpt2 .. [[
: token file: 5 tokens, u16, 1.0 KiB
  largest id     50256
  document ends  2 tokens 50256 (GPT-2's <|endoftext|>)
]], inspect(gpt2))
    local llama = tokens_of("llama.bin", 20240801, 7, "uint32_t", { 128001, 70000, 3 })
    assert.equal(llama .. [[
: token file: 3 tokens, u32, 1.0 KiB
  largest id     128001
  document ends  1 token 128001 (Llama 3's <|end_of_text|>); the file does not end with one
]], inspect(llama))
    assert.equal(gpt2 .. ": token file: 5 tokens, u16, 1.0 KiB\n", inspect(gpt2, "--no-checksums"))
    local none = inspect(gpt2, "--end", "9")
    has(none, "token 9 | --end | --end ID")
    local found = json.decode(inspect(llama, "--json", "--end", "3"))
    assert.same({ 3, "u32", 128001, 3, 1, false }, { found.tokens, found.dtype, found.largest, found.end_token,
      found.ends, found.open_end })
    local cut = write("cut.bin", numbers("int32_t", { 20240520, 1, 9 }), ("\0"):rep(1012), "ab")
    has(refused(cut), cut .. ": ")
    has(refused(write("later.bin", numbers("int32_t", { 20240801, 8, 0 }), ("\0"):rep(1012)))
      , "version | 8 | magic | 20240801 | 7")
  end)

  it("K7 prints the bytes of a text, and the ids of a tokenizer", function()
    local text = write("a.txt", "Grüße,\nWelt")
    assert.equal(text .. ": text: 13 tokens, u8, 13 B\n  largest id  195\n  lines       2\n", inspect(text))
    -- A character that the end of what is looked at cuts in two.
    has(inspect(write("long.txt", ("x"):rep(65535), "ü")), "65537 tokens, u8")
    local tokenizer = "tests/fixtures/tokenizer/good/gpt2.json"
    assert.equal(tokenizer .. ": tokenizer: byte-level BPE, ids below 900\n  largest id     899\n  <|endoftext|>  0\n",
      inspect(tokenizer))
  end)

  it("K5 names the format of a file that it cannot read, and the ones that it can", function()
    for content, what in pairs({
      ["PK\3\4....."] = "zip | torch.save",
      ["\31\139\8\0\0\0\0\0\0\0"] = "gzip",
      ["GGUF\3\0\0\0\0\0\0\0"] = "GGUF",
      ["\1\2\3\4\255"] = "binary | 01 02 03 04",
      ["abc\255def"] = "binary",
      [""] = "empty",
    }) do
      local got = refused(write("strange", content))
      has(got, "/strange: | " .. what)
      has(got, "moonshard inspect | safetensors | checkpoint | llm.c | 20240520 | 20240801 | tokenizer.json | UTF-8")
    end
    local config = refused(write("config.json", '{"model_type":"gpt2"}'))
    has(config, "JSON | tokenizer.json")
    local text = write("b.txt", "text")
    assert.equal("moonshard: moonshard inspect --end is only for token files: " .. text .. " is not one\n",
      refused(text, "--end", "1"))
    has(refused(folder), folder)
  end)
end)
