-- Which files a folder or a pattern has: those of sub-folders too, in one order, each once.

local ffi = require("ffi")
local files = require("moonshard.data.files.files")
local has = require("lua.support.message").has
local listing = require("moonshard.data.files.listing")
local ms = require("moonshard")
local scratch = require("lua.support.scratch")

ffi.cdef("int setfsuid(unsigned user);")

local NOBODY = 65534

describe("files of data", function()
  local folder

  setup(function()
    folder = scratch.folder()
    assert.equal(0, os.execute(("cd %s && mkdir -p en/a .git 'o[d]d' && ln -s .. en/up && ln -s en zz"):format(folder)))
    for _, name in ipairs({ "README.txt", "en/1.txt", "en/a/2.txt", "o[d]d/3.txt", ".git/4.txt", "en/.5.txt" }) do
      scratch.write(folder .. "/" .. name, ("text of %s, "):format(name):rep(10))
    end
    scratch.write(folder .. "/en/a/2.md", "notes")
  end)

  teardown(scratch.clear)

  local function found(spec)
    local list = files.find(spec, function(path) return path:find("%.txt$") ~= nil end, "text")
    for i, path in ipairs(list) do list[i] = path:sub(#folder + 2) end
    return table.concat(list, " ")
  end

  it("are read from a folder with its sub-folders, but for hidden ones, in the order of their paths", function()
    assert.equal("README.txt en/1.txt en/a/2.txt o[d]d/3.txt", found(folder))
    assert.equal("3.txt", found(folder .. "/o[d]d"):match("[^/]*$"))
  end)

  it("are those of Python's recursive glob for a pattern with **", function()
    local all = "README.txt en/1.txt en/a/2.txt o[d]d/3.txt"
    for pattern, expected in pairs({
      ["**"] = all, ["**/*.txt"] = all, ["**/a/*.txt"] = "en/a/2.txt", ["*/**/[12].txt"] = "en/1.txt en/a/2.txt",
      ["**/a/**/2.txt"] = "en/a/2.txt", ["e**/1.txt"] = "en/1.txt", ["*.txt"] = "README.txt",
      -- A link leads to the folder above, what it has is below en, too.
      ["en/**"] = "en/1.txt en/a/2.txt en/up/README.txt en/up/o[d]d/3.txt",
    }) do
      assert.equal(expected, found(folder .. "/" .. pattern), pattern)
    end
    assert.same({}, listing.match(folder .. "/none/**"))
    has(select(2, pcall(found, folder .. "/**/*.json")).message, "no file matches")
  end)

  it("are not left out where a folder cannot be read, whatever pattern leads there", function()
    local above = scratch.folder()
    assert.equal(0, os.execute(("cd %s && mkdir open locked && touch open/1.txt locked/2.txt"):format(above)))
    assert.equal(0, os.execute(("chmod 755 %s && chmod 0 %s/locked"):format(above, above)))
    local before = ffi.C.setfsuid(NOBODY) -- root reads every folder
    local results = {}
    for _, pattern in ipairs({ "**", "**/*.txt", "*/*.txt", "locked/*.txt", "l*/2.txt", "*/[12].txt" }) do
      local ok, message = pcall(listing.match, above .. "/" .. pattern)
      results[pattern] = ok and "found " .. #message or message.message
    end
    results.open = #listing.match(above .. "/open/*.txt") + #listing.match(above .. "/none*/*.txt")
    ffi.C.setfsuid(before)
    assert.equal(1, results.open)
    results.open = nil
    for pattern, result in pairs(results) do
      has(result, above .. "/locked cannot be read", pattern)
    end
    assert.equal(0, os.execute("chmod 755 " .. above .. "/locked"))
  end)

  it("are all read by data of text and of conversations", function()
    local all = ms.data.text({ files = folder, seq = 8, batch = 1, valid_fraction = 0 })
    local bytes = 5 -- of en/a/2.md
    for _, name in ipairs({ "README.txt", "en/1.txt", "en/a/2.txt", "o[d]d/3.txt" }) do
      bytes = bytes + 10 * #("text of " .. name .. ", ")
    end
    assert.equal(bytes, all.bytes)
    assert.equal(bytes, ms.data.text({ files = folder .. "/**", seq = 8, batch = 1, valid_fraction = 0 }).bytes)
    local chats = scratch.folder()
    assert.equal(0, os.execute("mkdir " .. chats .. "/sub"))
    for _, name in ipairs({ "x", "sub/y" }) do
      scratch.write(("%s/%s.jsonl"):format(chats, name),
        '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}\n')
    end
    assert.equal(2, ms.data.chat({ files = chats, seq = 64, batch = 1 }).conversations)
  end)
end)
