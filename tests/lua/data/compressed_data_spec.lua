-- Texts and token files that zstd compressed: the samples of the files themselves, one copy for all ranks, and what is
-- refused.

local ffi = require("ffi")
local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

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
    assert.truthy(copies:find("^%x+%-%x+%-%x+%-b.txt\n$"))
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

  it("G5 is no text where it is tokens or conversations: folders leave those out and refuse these", function()
    local header = ffi.string(ffi.new("int32_t[256]", { 20240520, 1, 4 }), 1024)
    write(folder, "a.bin.zst", compress(header .. ("\1\0"):rep(4)))
    local function data(files) return ms.data.text { files = files, seq = 4, batch = 1, valid_fraction = 0 } end
    has(message(data, folder), folder .. " contains no text")
    local text = write(folder, "b.txt.zst", compress("some text of some length"))
    assert.equal(24, data(folder).bytes)
    assert.equal(24, data(folder .. "/*.zst").bytes)
    local chats = write(folder, "c.jsonl.zst", compress(('{"prompt": "a", "completion": "b"}\n'):rep(9)))
    has(message(data, folder), "c.jsonl.zst:1: | prompt | ms.data.chat")
    has(message(data, chats), "c.jsonl.zst:1: | completion | field =") -- also by its own name
    assert.equal(35 * 9, ms.data.text({ files = chats, seq = 4, batch = 1, raw = true }).bytes)
    os.remove(chats)
    write(folder, "c.jsonl", '{"prompt": "a", "completion": "b"}\n')
    has(message(data, folder), "c.jsonl:1: | prompt | ms.data.preferences")
    has(message(ms.data.tokens, { files = text, seq = 4, batch = 1 }), "b.txt")
    os.remove(folder .. "/c.jsonl")
    write(folder, "d.txt.zst", "no frame at all")
    has(message(data, folder), "d.txt.zst | not a zstd file")
    os.remove(folder .. "/d.txt.zst")
    for _, name in ipairs({ "e.JSONL", "e.jsonl.zst", "e.json" }) do
      local line = '{"prompt": "a", "completion": "b"}\n'
      write(folder, name, name:find("zst") and compress(line) or line)
      has(message(data, folder), name .. ":1: | prompt | ms.data.chat")
      os.remove(folder .. "/" .. name)
    end
    write(folder, "e.json", '{\n  "a": 1\n}\n')
    assert.equal(24 + 13, data(folder).bytes)
    for name, kind in pairs({ ["f.txt.gz"] = { "gzip", "\31\139\8" }, ["f.xz"] = { "xz", "\2537zXZ\0" },
      ["f.bz2"] = { "bzip2", "BZh91AY&SY" } }) do
      local path = write(folder, name, kind[2] .. "words")
      for _, files in ipairs({ folder, path }) do
        has(message(data, files), name .. " | " .. kind[1] .. " | decompress | zstd")
      end
      has(message(ms.data.chat, { files = path }), name .. " | " .. kind[1])
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
    assert.truthy(copies_in(cache):find("^%x+%-%x+%-%x+%-b.txt\n$"))
  end)

  it("U10 is another text where a file of the same path, size and time has other bytes", function()
    -- Frames of one block, which is not compressed.
    local function frame(text)
      return "\40\181\47\253\32" .. string.char(#text, #text * 8 % 256 + 1, #text / 32, 0) .. text
    end
    local path, other = folder .. "/b.txt.zst", folder .. "/other"
    local function written(file, letter)
      scratch.write(file, frame(letter:rep(200)))
      assert.equal(0, os.execute("touch -d 2026-01-01 " .. file))
    end
    local function first_letter()
      return samples(ms.data.text { files = path, seq = 8, batch = 1, valid_fraction = 0 })[1]:sub(1, 1)
    end
    local function replaced_by(letter, command)
      written(other, letter)
      assert.equal(0, os.execute(command:format(other, path)))
      assert.equal(letter, first_letter())
    end
    written(path, "a")
    assert.equal("a", first_letter())
    written(path, "b") -- the same inode
    assert.equal("b", first_letter())
    replaced_by("c", "mv %s %s")
    replaced_by("d", "cp -p %s %s")
    replaced_by("e", "ln -sf %s %s")
    -- A file system that says the same of both: the bytes differ.
    local files = require("moonshard.data.files.files")
    local version = files.version
    finally(function() files.version = version end)
    files.version = function() return "1" end
    os.remove(path)
    written(path, "f")
    assert.equal("f", first_letter())
    written(path, "g")
    assert.equal("g", first_letter())
  end)

  it("U10 is made again where the copy is not what was decompressed, with a warning that names it", function()
    local text = ("a text of words "):rep(116316):sub(1, 1861050) -- several pieces
    local path = write(folder, "b.txt.zst", compress(text))
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { files = "" }
      print(ms.data.text({ files = cfg.files, seq = 64, batch = 1 }).bytes)
    ]]
    local function run() -- a process of its own: one that has read a copy through does not read it again
      local ended = program.run({ "run", recipe, "-n", "2", "--log-ranks", "all", "files=" .. path },
        "XDG_CACHE_HOME=" .. cache)
      assert.equal(0, ended.status, ended.err)
      return ended
    end
    assert.equal("", run().err)
    local copy = cache .. "/moonshard/" .. copies_in(cache):match("^[^\n]+")
    for what, damage in pairs({
      truncated = text:sub(1, -2), zeroed = ("\0"):rep(#text), emptied = "",
      ["one byte"] = text:sub(1, 2 ^ 20) .. "#" .. text:sub(2 ^ 20 + 2), longer = text .. "more",
    }) do
      scratch.write(copy, damage)
      local ended = run()
      has(ended.err, copy .. " | warning | damaged")
      assert.equal(2, select(2, ended.out:gsub("1861050", "")), what)
      assert.equal(text, scratch.read(copy), what)
      assert.equal(1, select(2, copies_in(cache):gsub("\n", "")), what)
    end
    assert.equal("", run().err)
    os.remove(recipe)
  end)

  it("U10 is known by what a file contains, under any name", function()
    local line = '{"prompt": "a", "completion": "b"}\n'
    local function text(files, raw)
      return ms.data.text { files = files, seq = 4, batch = 1, valid_fraction = 0, raw = raw }
    end
    local function chats(files) return ms.data.chat { files = files, seq = 96, batch = 1 } end
    assert.equal(9, text(write(folder, "a.txt", compress("some text"))).bytes)
    assert.equal(1, chats(write(folder, "b.jsonl", compress(line))).conversations)
    local header = ffi.string(ffi.new("int32_t[256]", { 20240520, 1, 9 }), 1024)
    local tokens = write(folder, "c.bin", compress(header .. ("\1\0"):rep(9)))
    assert.equal(9, ms.data.tokens({ files = tokens, seq = 4, batch = 1, valid_fraction = 0 }).tokens)
    local kinds = {
      { "gzip", "\31\139\8\0rest" }, { "xz", "\2537zXZ\0rest" }, { "bzip2", "BZh91AY&SYrest" },
      { "lz4", "\4\34\77\24rest" }, { "zip", "PK\3\4rest" }, { "7z", "7z\188\175\39\28rest" },
      { "tar", ("x"):rep(257) .. "ustar\00000" }, { "Parquet", "PAR1\21\4" }, { "Arrow", "ARROW1\0\0" },
      { "Arrow stream", "\255\255\255\255\120\0\0\0\16\0\0\0" }, { "SQLite", "SQLite format 3\0" },
      { "PDF", "%PDF-1.7\n" }, { "Git LFS", "version https://git-lfs.github.com/spec/v1\noid" },
      { "UTF-16", "\255\254a\0b\0" },
    }
    for _, kind in ipairs(kinds) do
      local path = write(folder, "kind.txt", kind[2] .. ("."):rep(300))
      local packed = write(folder, "packed.txt.zst", compress(scratch.read(path)))
      for _, files in ipairs({ path, folder .. "/kind*", packed }) do
        has(message(text, files), ".txt | " .. kind[1] .. " | raw = true")
      end
      has(message(chats, path), "kind.txt | " .. kind[1])
      os.remove(folder .. "/packed.txt.zst")
    end
    has(message(text, write(folder, "kind.txt", "a\0bcde")), "kind.txt | zero byte | raw = true")
    assert.equal(7, text(write(folder, "kind.txt", "a\0bcdef"), true).bytes)
    os.remove(folder .. "/kind.txt")
  end)

  it("U10 is text if it begins with the letters of another format, also in a folder", function()
    local texts, bytes = scratch.folder(), 0
    for i, beginning in ipairs({ "GGUF files hold models.", "GGUF\n\nA format.", "PAR1 is what", "ARROW1 keys, ",
      "FEA1: ", ("x"):rep(257) .. "ustar is how", "SQLite format 3 is" }) do
      local path = write(texts, i .. ".txt", beginning .. (" more text."):rep(20))
      bytes = bytes + ms.data.text({ files = path, seq = 4, batch = 1, valid_fraction = 0 }).bytes
    end
    assert.is_true(bytes > 7 * 220)
    assert.equal(bytes, ms.data.text({ files = texts, seq = 4, batch = 1, valid_fraction = 0 }).bytes)
  end)

  it("U10 is not text where it is JSON, unless its name or the field's says so, or its bytes are asked for", function()
    local function text(files, raw)
      return ms.data.text { files = files, seq = 4, batch = 1, valid_fraction = 0, raw = raw }
    end
    local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 16 }
    local tokenizer = "tests/fixtures/tokenizer/good/gpt2.json"
    for name, case in pairs({
      ["docs.text"] = { '{"text": "one"}\n{"text": "two"}\n', "jq -r .text" },
      ["docs.txt"] = { '  {"id": 1, "content": "one"}\n{"id": 2, "content": "two"}\n', "jq -r .content" },
      ["docs.list"] = { '[\n  {"text": "one"},\n  {"text": "two"}\n]\n', "jq -r .[].text" },
      ["docs.data"] = { '\239\187\191{"raw_content":"one"}', "jq -r .raw_content" },
      ["docs.log"] = { '{ "a\\"b": 1 }\n{"text": 2}', "JSON" },
    }) do
      local path = write(folder, name, case[1])
      if name ~= "docs.log" then
        local packed = write(folder, "packed.txt", compress(case[1]))
        has(message(text, packed), "packed.txt | JSON | " .. case[2])
        os.remove(packed)
        for _, files in ipairs({ path, folder }) do
          has(message(text, files), name .. " | JSON | " .. case[2] .. " | ms.data.chat | raw = true")
        end
        has(message(ms.evaluate.perplexity, model, { files = path }), name .. " | " .. case[2])
        local ended = program.run { "tokenize", "--tokenizer", tokenizer, "--out", folder .. "/out.bin", path }
        assert.equal(2, ended.status)
        has(ended.err, name .. " | " .. case[2] .. " | --raw")
      end
      assert.equal(#case[1], text(path, true).bytes)
      os.remove(path)
    end
    local path = write(folder, "docs.jsonl", '{"text": "one"}\n')
    local ended = program.run { "tokenize", "--raw", "--tokenizer", tokenizer, "--out", folder .. "/out.bin", path }
    assert.equal(0, ended.status, ended.err)
    os.remove(folder .. "/out.bin")
    -- One object on several lines is a text like another.
    assert.equal(13, text(write(folder, "config.json", '{\n  "a": 1\n}\n')).bytes)
  end)

  it("G5 is read with a window beyond the library's own limit, and refused with one beyond 2 GiB", function()
    -- A frame of one block, which is not compressed, with a window of 2 to the power of `log` bytes.
    local function frame(log, text)
      return "\40\181\47\253\0" .. string.char((log - 10) * 8, #text * 8 + 1, 0, 0) .. text
    end
    local function data(log)
      local path = write(folder, "long.txt.zst", frame(log, "some text of words"))
      return ms.data.text { files = path, seq = 8, batch = 1, valid_fraction = 0 }
    end
    assert.equal(18, data(27).bytes)
    assert.equal(18, data(28).bytes)
    has(message(data, 32), "long.txt.zst | window | 2 GiB | zstd | --long")
    os.remove(folder .. "/long.txt.zst")
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
