-- Texts and token files that zstd compressed: the samples of the files themselves, one copy for all ranks, and what is
-- refused.

local ffi = require("ffi")
local has = require("lua.message").has
local message = require("lua.fixture").message
local ms = require("moonshard")
local program = require("lua.program")
local scratch = require("lua.scratch")

ffi.cdef [[
  size_t ZSTD_compress(void *to, size_t capacity, const void *from, size_t bytes, int level);
  int setenv(const char *name, const char *value, int overwrite);
]]

local function compress(plain)
  local room = ffi.new("uint8_t[?]", #plain + 2 ^ 16)
  return ffi.string(room, ffi.load("libzstd.so.1").ZSTD_compress(room, #plain + 2 ^ 16, plain, #plain, 3))
end

local function write(folder, name, text)
  scratch.write(folder .. "/" .. name, text)
  return folder .. "/" .. name
end

-- Batches as text, in the order of the data.
local function samples(data)
  local found = {}
  for _, batch in data:batches() do
    found[#found + 1] = ffi.string(batch.tokens.data, 4 * batch.tokens.shape[1] * batch.tokens.shape[2])
  end
  return found
end

local function copies_in(folder)
  local list = io.popen(("ls '%s/moonshard' 2>/dev/null"):format(folder))
  local names = list:read("*a")
  list:close()
  return names
end

describe("compressed data", function()
  local folder, cache

  before_each(function()
    folder, cache = scratch.folder(), scratch.folder()
    ffi.C.setenv("XDG_CACHE_HOME", cache, 1)
  end)
  after_each(scratch.clear)

  it("G5 is the text that was compressed, in folders too, made once", function()
    local text = scratch.read("README.md"):rep(200) -- several pieces
    local plain, packed = write(folder, "a.txt", text), write(folder, "b.txt.zst", compress(text))
    local function data(files) return ms.data.text { files = files, seq = 512, batch = 64, valid_fraction = 0 } end
    assert.same(samples(data(plain)), samples(data(packed)))
    local copies = copies_in(cache)
    assert.truthy(copies:find("^%x+%-b.txt\n$"))
    assert.equal(2 * #text, data(folder).bytes)
    assert.equal(copies, copies_in(cache))
    write(folder, "b.txt.zst", compress(text .. "more")) -- another time and size: another copy
    assert.equal(#text + 4, data(packed).bytes)
    assert.equal(2, select(2, copies_in(cache):gsub("\n", "")))
    local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 16 }
    assert.same(ms.evaluate.perplexity(model, { files = write(folder, "c.txt", "some text") }),
      ms.evaluate.perplexity(model, { files = write(folder, "c.txt.zst", compress("some text")) }))
  end)

  it("G5 is token files in one stream with others", function()
    local function token_file(first, count)
      local header, values = ffi.new("int32_t[256]", { 20240520, 1, count }), ffi.new("uint16_t[?]", count)
      for i = 0, count - 1 do values[i] = first + i end
      return ffi.string(header, 1024) .. ffi.string(values, 2 * count)
    end
    write(folder, "1.bin", token_file(0, 100))
    write(folder, "2.bin.zst", compress(token_file(100, 101)))
    local data = ms.data.tokens { files = folder, seq = 10, batch = 1, shuffle = false, valid_fraction = 0 }
    assert.equal(201, data.tokens)
    local last
    for _, batch in data:batches() do last = batch.tokens.data[9] end
    assert.equal(199, last)
  end)

  it("G5 is no text where it is tokens or JSON lines: a folder of text leaves those out, and refuses these", function()
    local header = ffi.string(ffi.new("int32_t[256]", { 20240520, 1, 4 }), 1024)
    write(folder, "a.bin.zst", compress(header .. ("\1\0"):rep(4)))
    local function data(files) return ms.data.text { files = files, seq = 4, batch = 1, valid_fraction = 0 } end
    has(message(data, folder), folder .. " contains no text")
    local text = write(folder, "b.txt.zst", compress("some text of some length"))
    assert.equal(24, data(folder).bytes)
    assert.equal(24, data(folder .. "/*.zst").bytes)
    local chats = write(folder, "c.jsonl.zst", compress(('{"prompt": "a", "completion": "b"}\n'):rep(9)))
    has(message(data, folder), "c.jsonl.zst | JSON lines | ms.data.chat")
    assert.equal(35 * 9, data(chats).bytes) -- by its own name
    os.remove(chats)
    write(folder, "c.jsonl", '{"prompt": "a", "completion": "b"}\n')
    has(message(data, folder), "c.jsonl | JSON lines | ms.data.preferences")
    has(message(ms.data.tokens, { files = text, seq = 4, batch = 1 }), "b.txt")
    os.remove(folder .. "/c.jsonl")
    write(folder, "d.txt.zst", "no frame at all")
    has(message(data, folder), "d.txt.zst | not a zstd file")
    os.remove(folder .. "/d.txt.zst")
    for _, name in ipairs({ "e.JSONL", "e.jsonl.zst", "e.json" }) do
      local line = '{"prompt": "a", "completion": "b"}\n'
      write(folder, name, name:find("zst") and compress(line) or line)
      has(message(data, folder), name .. " | JSON lines | ms.data.chat")
      os.remove(folder .. "/" .. name)
    end
    write(folder, "e.json", '{\n  "a": 1\n}\n')
    assert.equal(24 + 13, data(folder).bytes)
    for name, by in pairs({ ["f.txt.gz"] = "gzip", ["f.xz"] = "xz", ["f.bz2"] = "bzip2" }) do
      local path = write(folder, name, "words")
      for _, files in ipairs({ folder, path }) do
        has(message(data, files), name .. " | " .. by .. " | decompress | zstd")
      end
      has(message(ms.data.chat, { files = path }), name .. " | " .. by)
      os.remove(path)
    end
  end)

  it("G5 is looked at as far as other files are, and named in messages as the user named it", function()
    local function data(files) return ms.data.text { files = files, seq = 4, batch = 1, valid_fraction = 0 } end
    local late = ("a"):rep(5000) .. "\0" .. ("b"):rep(99)
    write(folder, "a.txt", late)
    write(folder, "b.txt.zst", compress(late))
    assert.equal(2 * #late, data(folder).bytes)
    has(message(data, folder .. "/*.none"), "*.none | no file matches")
    write(folder, "c.bin", "\0\0")
    has(message(data, folder .. "/*.bin"), "*.bin | 1 match | text")
    local path = write(folder, "d.bin.zst", compress("no header"))
    local said = message(ms.data.tokens, { files = path, seq = 4, batch = 1 })
    has(said, path)
    assert.is_nil(said:find(cache, 1, true))
  end)

  it("G5 has one copy for the ranks of a host", function()
    local path = write(folder, "b.txt.zst", compress(("some words "):rep(300000)))
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args {}
      print(ms.data.text({ files = cfg.files, seq = 64, batch = 1 }).bytes)
    ]]
    local ended = program.run { "run", recipe, "-n", "4", "files=" .. path, "--log-ranks", "all" }
    os.remove(recipe)
    assert.equal(0, ended.status, ended.err)
    assert.equal(4, select(2, ended.out:gsub("3300000", "")))
    assert.truthy(copies_in(cache):find("^%x+%-b.txt\n$"))
  end)

  it("G5 is refused where it is damaged, and leaves no copy", function()
    local text = scratch.read("README.md")
    local function refused(bytes)
      return message(ms.data.text, { files = write(folder, "b.txt.zst", bytes), seq = 8, batch = 1 })
    end
    has(refused("words"), "b.txt.zst | zstd")
    has(refused(compress(text):sub(1, -9)), "b.txt.zst | frame")
    assert.equal("", (copies_in(cache):gsub("%S+%.partial\n", "")))
    has(message(ms.data.text, { files = folder .. "/none.zst", seq = 8, batch = 1 }), "none.zst: ")
    ffi.C.setenv("XDG_CACHE_HOME", "/proc/none", 1)
    has(refused(compress(text)), "/proc/none")
  end)
end)
