-- Training over meshes of every origin: slices, groups by hand, unflattened dimensions. Real ranks train
-- tests/lua/recipes/parity.lua; what differs in how its mesh was made must end in the same bits.

local json = require("cjson")
local breadth = require("lua.support.breadth")
local program = require("lua.support.program")

local function read(path)
  local file = io.open(path)
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  os.remove(path)
  return json.decode(text)
end

-- What the first copy of the mesh ended with, and the second where there is one.
local function run(ranks, settings)
  local words, out = { "steps=" .. breadth.few({ 4, 2 })[1] }, os.tmpname()
  -- The default is another one in a pipeline.
  if not settings.reshard then words[2] = "reshard=true" end
  for name, value in pairs(settings) do words[#words + 1] = ("%s=%s"):format(name, tostring(value)) end
  local ended = program.run({
    "run", "tests/lua/recipes/parity.lua", "-n", tostring(ranks), "out=" .. out, unpack(words),
  }, "OMP_NUM_THREADS=1") -- workspace depends on it
  assert(ended.status == 0, ended.err)
  return read(out), read(out .. ".second")
end

local function assert_same(expected, got)
  for _, what in ipairs({ "losses", "norms", "params", "comm_bytes", "evaluated", "collectives", "peak_bytes" }) do
    assert.same(expected[what], got[what])
  end
end

local native = {}

-- On all of so many ranks, alone in its world; the same mesh is trained once.
local function alone(mesh, samples, layout)
  local ranks = tonumber(mesh:match("^%d+")) * tonumber(mesh:match("%d+$"))
  local key = mesh .. " " .. samples .. " " .. layout
  native[key] = native[key] or run(ranks, { mesh = mesh, samples = samples, layout = layout })
  return native[key]
end

describe("copies of a slice", function()
  for title, case in pairs({
    ["FSDP, side by side"] = { "slice", "1x2", 4 },
    ["FSDP, interleaved"] = { "interleaved", "1x2", 4 },
    ["DDP, interleaved"] = { "interleaved", "2x1", 4 },
    ["HSDP, side by side"] = { "slice", "2x2", 8 },
    ["HSDP, interleaved"] = { "interleaved", "2x2", 8 },
    ["of one rank each"] = { "slice", "1x1", 2 },
  }) do
    it("D4 train apart, each as it would alone: " .. title, function()
      for _, layout in ipairs(breadth.few({ "rows", "ragged" })) do
        local first, second = run(case[3], { build = case[1], mesh = case[2], layout = layout })
        assert_same(alone(case[2], 0, layout), first)
        assert_same(alone(case[2], 1000, layout), second)
        assert.not_same(first.losses, second.losses)
      end
    end)
  end

  it("D4 train apart in bf16, where weights are gathered", function()
    local settings = { build = "interleaved", mesh = "2x2", dtype = "bf16", reduce = "bf16" }
    local first, second = run(8, settings)
    settings.build = nil
    assert_same(run(4, settings), first)
    settings.samples = 1000
    assert_same(run(4, settings), second)
  end)

  it("D4 train apart with a shard for a smaller group in each", function()
    local settings = { build = "interleaved", mesh = "1x4", reshard = 2, dtype = "bf16" }
    local first, second = run(8, settings)
    settings.build = nil
    assert_same(run(4, settings), first)
    settings.samples = 1000
    assert_same(run(4, settings), second)
  end)
end)

describe("a mesh made otherwise", function()
  it("D2 D6 of groups by hand trains to the same bits as the native one", function()
    assert_same(alone("2x2", 0, "rows"), (run(4, { build = "groups", mesh = "2x2" })))
  end)

  it("D6 of groups over ranks in another order trains to the same bits", function()
    local got = run(4, { build = "shuffled_groups", mesh = "2x2" })
    assert_same(alone("2x2", 0, "rows"), got)
  end)

  it("D6 of groups of two meshes trains both", function()
    local first, second = run(8, { build = "two_meshes", mesh = "2x2" })
    assert_same(alone("2x2", 0, "rows"), first)
    assert_same(alone("2x2", 1000, "rows"), second)
  end)

  it("D5 by unflattening trains to the same bits", function()
    assert_same(alone("2x2", 0, "rows"), (run(4, { build = "unflattened", mesh = "2x2" })))
  end)
end)
