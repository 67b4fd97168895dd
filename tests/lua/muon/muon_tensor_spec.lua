-- Muon on matrices that a tensor dimension divides: the owner has the parts of all ranks, by rows or by columns, so
-- training is that of one rank on every mesh, and its state goes from mesh to mesh.

local breadth = require("lua.support.breadth")
local checkpoint = require("moonshard.checkpoint")
local compare = require("moonshard.check.tolerance")
local ffi = require("ffi")
local json = require("cjson")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local RECIPE = "tests/lua/recipes/tensor_parallel.lua"
-- The matrices of presets, and of modules that no preset knows. `tokens` has no placement: every rank has all of it.
local MATRICES = [[muon=\.(w\w|fc\d|up|gate|down|tokens)\.weight$]]

local function ranks_of(mesh)
  local ranks = 1
  for size in mesh:gmatch("%d+") do ranks = ranks * tonumber(size) end
  return tostring(ranks)
end

local function words(command, mesh, ...)
  return { command, RECIPE, "-n", ranks_of(mesh), "mesh=" .. mesh, MATRICES, ... }
end

local function run(mesh, ...)
  local ended = program.run(words("run", mesh, ...))
  assert.equal(0, ended.status, mesh .. ": " .. ended.err)
  return ended
end

-- Which dimension divides what a layer has: up and gate by rows of the weight, down by its columns.
local cases = {
  ["gpt2"] = words("check", "1x1x2"),
  ["mixer"] = words("check", "1x1x4", "model=mixer"),
  ["shards"] = words("check", "1x2x2", "model=mixer"),
  ["replicas"] = words("check", "2x1x2", "layout=ragged"),
  ["own copies"] = words("check", "2x1x2", "model=mixer", "own_copies=true"),
  ["slices"] = words("check", "2x1x2", "model=mixer", "sliced=true"),
  ["context"] = words("check", "1x1x2x2", "model=llama"),
  ["in bf16"] = words("check", "1x2x2", "model=llama", "dtype=bf16", "sequence_parallel=true"),
  ["all"] = words("check", "2x2x2", "batch=1", "model=mixer", "micro_batches=2", "own_copies=true"),
  ["frozen"] = words("check", "1x2x2", "freeze=fc1", "tied=true"),
}
local _, equals_one_rank = program.checks(cases)

-- The momentum and the weights of every matrix in a checkpoint.
local function contents(path)
  local source, all = checkpoint.open(path), {}
  for _, param in ipairs(source.parameters) do
    local numel = 1
    for _, size in ipairs(param.shape) do numel = numel * size end
    local is_matrix = #param.shape == 2 and param.name:find("^layers")
    for _, kind in ipairs(is_matrix and { "param", "momentum" } or { "param" }) do
      local values = ffi.new("float[?]", numel)
      source:read(kind, param.name, 0, numel, values)
      all[kind .. " " .. param.name] = { values = values, numel = numel }
    end
  end
  source:close()
  return all
end

local function saved(mesh, ...)
  local folder = scratch.path()
  run(mesh, "saves=" .. folder, ...)
  return folder
end

describe("Muon with a tensor dimension", function()
  it("Q9 trains presets and other modules as one rank does", function() equals_one_rank("gpt2", "mixer") end)

  it("Q9 composes with shards, replicas, context, bf16, micro-batches and frozen weights", function()
    equals_one_rank("shards", "replicas", "context", "in bf16", "all", "frozen")
  end)

  it("Q9 trains where replicas have copies or slices of the state", function()
    equals_one_rank("own copies", "slices")
  end)

  it("Q9 moves matrices as one rank does, whose parts are by rows and by columns, within 5e-5 of the largest move",
    function()
      for _, model in ipairs { "gpt2", "mixer" } do
        local function moves(mesh)
          local first, after, all = contents(saved(mesh, "model=" .. model, "steps=0")),
            contents(saved(mesh, "model=" .. model, "steps=1")), {}
          for name, has in pairs(after) do
            local fqn = name:match("^param (.*)")
            if fqn and after["momentum " .. fqn] then
              all[fqn] = { largest = compare.largest(has.values, 0, has.numel) } -- a stored weight rounds
              for i = 1, has.numel do all[fqn][i] = has.values[i - 1] - first[name].values[i - 1] end
            end
          end
          return all
        end
        -- Gradients differ by the rounding of sums in another order, which the first iterations amplify.
        local one, checked = moves("1x1x1"), 0
        for _, mesh in ipairs { "1x1x2", "1x1x4" } do
          local got = moves(mesh)
          for name, expected in pairs(one) do
            local worst = compare.arrays(expected, got[name], { count = #expected, tolerance = 5e-5,
              slack = function() return 2 ^ -23 * expected.largest end })
            assert.is_false(worst.differs, ("%s %s %s: %g and %g"):format(model, mesh, name, worst.expected, worst.got))
            checked = checked + 1
          end
        end
        assert.equal(model == "gpt2" and 24 or 16, checked)
      end
    end)

  it("Q9 A1 trains on the device cuda as one rank does", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return end
    local library = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so"):format(
      os.getenv("MOONSHARD_BIN"):match("^(.*)/"))
    local ended = program.run(words("check", "1x1x2", "model=mixer", "device=cuda"), program.emulated_cuda(library))
    assert.equal(0, ended.status, ended.out .. ended.err)
  end)

  it("Q9 K1 goes on from a checkpoint of another mesh, bit for bit with the same state", function()
    local first = saved("1x2x2", "steps=2", "tied=true")
    local expected, folder = contents(first), first
    for _, mesh in ipairs(breadth.all and { "1x1x4", "2x1x2", "1x1x1", "2x2x1", "1x2x2" } or { "1x1x4", "2x2x1" }) do
      folder = saved(mesh, "steps=0", "tied=true", "loads=" .. folder)
      for name, has in pairs(contents(folder)) do
        assert.is_true(ffi.string(has.values, 4 * has.numel) == ffi.string(expected[name].values, 4 * has.numel),
          mesh .. " " .. name)
      end
    end
    local on = contents(saved("1x2x2", "steps=3", "tied=true", "resume=true"))
    local half = saved("1x2x2", "steps=2", "tied=true", "resume=true")
    local again = contents(saved("1x2x2", "steps=3", "tied=true", "resume=true", "loads=" .. half))
    for name, has in pairs(on) do
      assert.is_true(ffi.string(has.values, 4 * has.numel) == ffi.string(again[name].values, 4 * has.numel), name)
    end
  end)

  it("Q9 divides the work over the tensor dimension, too", function()
    local ended = program.run(words("explain", "1x2x2", "model=mixer", "--json"))
    assert.equal(0, ended.status, ended.err)
    local muon, owned = json.decode(ended.out).muon, {}
    for name, rank in pairs(muon.owners) do
      assert.is_truthy(name:find("^layers.*weight$"))
      owned[rank] = (owned[rank] or 0) + 1
    end
    for rank = 0, 3 do assert.equal(2, owned[rank]) end -- up, gate, down and tokens of two layers
    assert.is_true(muon.balance < 1.5, muon.balance)
  end)
end)
