-- What stands where a file of a model, a checkpoint or data should be, and is none: a pipe without a writer, a
-- folder, a device without an end. It is refused by name, and never waited for.

local ffi = require("ffi")
local fixture = require("lua.support.fixture")
local huggingface = require("lua.support.huggingface")
local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")
local ms = require("moonshard")

ffi.cdef "unsigned alarm(unsigned seconds);"

local PATIENCE = 60 -- seconds after which a reader that waits ends these specs

local KINDS = {
  { "a pipe", "mkfifo '%s'", "regular file" },
  { "a folder", "mkdir '%s'", "regular file | folder" },
  { "a device", "ln -s /dev/zero '%s'", "regular file" },
}

local function copy_of(fixture_name)
  local folder = scratch.path()
  os.execute(("cp -r '%s%s' '%s'"):format(huggingface.FIXTURES, fixture_name, folder))
  return folder
end

-- A checkpoint that reads as far as its list of files.
local function checkpoint()
  local folder = scratch.path()
  os.execute("mkdir " .. folder)
  local train = ms.trainer {
    model = ms.nn.linear(4, 2), optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse,
  }
  return ms.checkpoint.save(train, folder)
end

-- What reads `name` of a folder that `make` gives.
local READERS = {
  { "config.json", copy_of, "gpt2", ms.huggingface.model },
  { "model.safetensors", copy_of, "gpt2", ms.huggingface.model },
  { "tokenizer.json", copy_of, "gpt2", ms.tokenizer },
  { "manifest.json", checkpoint, nil, ms.checkpoint.open },
  { "rank-00000.safetensors", checkpoint, nil, function(path) ms.checkpoint.open(path):verify() end,
    { ["a folder"] = "folder | no model.safetensors" } },
  { "model.safetensors.index.json", copy_of, "gpt2", function(folder)
    os.remove(folder .. "/model.safetensors")
    ms.safetensors.open(folder)
  end },
  { "part.safetensors", copy_of, "gpt2", function(folder)
    os.remove(folder .. "/model.safetensors")
    scratch.write(folder .. "/model.safetensors.index.json", '{"weight_map":{"x":"part.safetensors"}}')
    ms.safetensors.open(folder)
  end },
  { "tokens.bin", copy_of, "gpt2", function(folder)
    ms.data.tokens { files = folder .. "/tokens.bin", seq = 4, batch = 1 }
  end, { ["a folder"] = "contains no" } },
  { ".lock", function()
    local folder = scratch.path()
    os.execute("mkdir " .. folder)
    return folder
  end, nil, function(folder)
    ms.trainer {
      model = ms.nn.linear(4, 2), optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse,
      checkpoint = { dir = folder },
    }
  end, { ["a folder"] = "not a regular file" } },
}

describe("a file that is none", function()
  setup(function() ffi.C.alarm(PATIENCE) end)
  teardown(function()
    ffi.C.alarm(0)
    scratch.clear()
  end)

  for _, reader in ipairs(READERS) do
    local name, make, from, call, other = unpack(reader)
    it("K6 K7 is refused in the place of " .. name, function()
      for _, kind in ipairs(KINDS) do
        local folder = make(from)
        local path = folder .. "/" .. name
        os.remove(path)
        assert(os.execute(kind[2]:format(path)) == 0)
        local message = fixture.message(call, folder)
        has(message, path)
        has(message, other and other[kind[1]] or kind[3])
      end
    end)
  end

  it("U10 is refused in a folder or a pattern of data if it is a link to a missing file", function()
    local folder = scratch.folder()
    local function bytes(files) return ms.data.text({ files = files, seq = 4, batch = 1 }).bytes end
    scratch.write(folder .. "/a.txt", ("0123456789"):rep(40))
    assert(os.execute(("ln -s blobs/b.txt '%s/b.txt'"):format(folder)) == 0)
    for _, files in ipairs { folder, folder .. "/*.txt" } do
      has(fixture.message(bytes, files), folder .. "/b.txt | link | restore")
    end
    os.remove(folder .. "/b.txt")
    assert.equal(400, bytes(folder))
  end)
end)
