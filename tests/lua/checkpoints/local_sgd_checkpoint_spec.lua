-- Checkpoints of local SGD: at any step they resume bit for bit on as many replicas, with other shards too; from a sync
-- on any mesh; and who reads only weights gets the synced ones.

local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local local_sgd = require("lua.optimizers.local_sgd")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- Saved between two syncs; after a sum was sent and before it is applied; after a sync.
local CASES = {
  { mesh = "2x2", save_at = 6, steps = 11, optimizer = "adamw" },
  { mesh = "3x1", save_at = 5, steps = 9, every = 4, delay = 2, outer_momentum = 0, nesterov = false },
  { mesh = "2x2", save_at = 4, steps = 9, always = "layers.2", layout = "ragged", optimizer = "adamw" },
  { mesh = "2x1", save_at = 7, steps = 13, every = 8, fragments = 2, delay = 3, alpha = 0.25, ema = 0.9 },
  { mesh = "2x1x3", save_at = 6, steps = 11, fragments = 2, delay = 1, optimizer = "adamw", ema = 0.9 },
  { mesh = "2x1x2x1", positions = 4, save_at = 6, steps = 9, optimizer = "adamw" },
}

local function with(settings, more)
  local all = {}
  for name, value in pairs(settings) do all[name] = value end
  for name, value in pairs(more) do all[name] = value end
  return all
end

-- What must be the same after a run and a resumed one.
local KEPT = { "params", "synced", "momentum", "sums", "moments", "ema" }

local function last_of(list, n) return { unpack(list, #list - n + 1) } end

local function step_folder(root, step) return ("%s/step-%08d"):format(root, step) end

describe("checkpoints of local SGD", function()
  local folders, whole, resumed = {}, nil, nil
  local cases = breadth.few(CASES)

  setup(function()
    local saving, loading = {}, {}
    for i, settings in ipairs(cases) do
      folders[i] = scratch.folder()
      saving[i] = with(settings, { save = folders[i] })
      loading[i] = with(settings, { load = folders[i], save_at = 0 })
    end
    whole = local_sgd.run_all(saving)
    resumed = local_sgd.run_all(loading)
  end)
  teardown(scratch.clear)

  for i, settings in ipairs(cases) do
    it(("H12 K1 resumes bit for bit after step %d on mesh %s"):format(settings.save_at, settings.mesh), function()
      for rank, found in ipairs(resumed[i]) do
        for _, key in ipairs(KEPT) do assert.same(whole[i][rank][key], found[key]) end
        assert.same(last_of(whole[i][rank].losses, settings.steps - settings.save_at), found.losses)
        for step, bytes in ipairs(last_of(whole[i][rank].bytes, settings.steps - settings.save_at)) do
          for dim, moved in pairs(bytes) do assert.near(moved, found.bytes[step][dim], 1e-6) end -- means over ranks
        end
      end
    end)
  end

  local between, at_sync, delayed -- the folders of runs, made once

  setup(function()
    between, at_sync, delayed = scratch.folder(), scratch.folder(), scratch.folder()
    local_sgd.run_all({
      { mesh = "2x2", optimizer = "adamw", steps = 6, save_at = 6, save = between },
      { mesh = "2x2", optimizer = "adamw", steps = 8, save_at = 8, save = at_sync },
      { mesh = "2x1", steps = 7, save_at = 7, every = 8, fragments = 2, delay = 3, save = delayed },
    })
  end)

  it("H12 resumes over other shards, and at a sync with other replicas", function()
    local runs = local_sgd.run_all({
      same = { mesh = "2x2", optimizer = "adamw", load = between, steps = 11 },
      shards = { mesh = "2x1", optimizer = "adamw", load = between, steps = 6 },
      saved = { mesh = "2x2", optimizer = "adamw", load = between, steps = 6 },
      more = { mesh = "4x1", optimizer = "adamw", load = at_sync, steps = 8 },
      fewer = { mesh = "1x2", optimizer = "adamw", load = at_sync, steps = 8 },
      synced = { mesh = "2x2", optimizer = "adamw", load = at_sync, steps = 8 },
    })
    for replica = 1, 2 do
      for _, key in ipairs({ "params", "synced", "momentum", "moments" }) do
        assert.same(runs.saved[2 * replica - 1][key], runs.shards[replica][key])
      end
    end
    for replica, found in ipairs(runs.more) do
      for _, key in ipairs({ "params", "synced", "momentum" }) do assert.same(runs.synced[1][key], found[key]) end
      assert.same(runs.synced[replica % 2 == 1 and 1 or 3].moments, found.moments)
    end
    assert.same(runs.synced[1].params, runs.fewer[1].params)
    assert.same(runs.synced[1].moments, runs.fewer[1].moments)
    assert.equal(5, #runs.same[1].losses)
  end)

  it("H12 goes on between two syncs of two trainers' steps", function()
    local folder = scratch.folder()
    local saved = local_sgd.run { mesh = "2x1", trainers = 2, every = 5, steps = 11, save_at = 8, save = folder }
    local loaded = local_sgd.run { mesh = "2x1", trainers = 2, every = 5, steps = 11, load = folder, first = 9 }
    for rank = 1, 2 do
      for _, key in ipairs({ "params", "synced", "momentum", "moments" }) do
        assert.same(saved[rank][key], loaded[rank][key])
      end
    end
  end)

  it("H12 starts from the weights of a run without local SGD", function()
    local folder = scratch.folder()
    local runs = local_sgd.run_all({ { mesh = "2x1", every = 0, steps = 3, save_at = 3, save = folder } })
    local found = local_sgd.run({ mesh = "2x2", load = folder, steps = 3 })
    for _, rank in ipairs(found) do
      assert.same(runs[1][1].params, rank.params)
      assert.same(runs[1][1].params, rank.synced)
      assert.same(runs[1][1].moments, rank.moments)
    end
  end)

  it("H12 a model, and exports, get the synced weights", function()
    local checkpoint = require("moonshard.checkpoint")
    local ffi = require("ffi")
    local read = checkpoint.open(between)
    local wanted = local_sgd.run({ mesh = "2x2", optimizer = "adamw", load = between, steps = 6 })
    local out = ffi.new("float[5]")
    read:read("param", "bias", 0, 5, out)
    for i = 1, 5 do assert.equal(wanted[1].synced.bias[i], out[i - 1]) end
    assert.not_same(wanted[1].synced.bias, wanted[1].params.bias)
    read:close()
    local shown = program.run({ "inspect", step_folder(between, 6) })
    has(shown.out, "replicate_sync | every 4 | replicas 2")
  end)

  local function refused(facts, settings)
    local ended = local_sgd.ended(settings)
    assert.equal(2, ended.status)
    has(ended.err, facts)
  end

  it("H12 K4 refuses what a checkpoint between syncs cannot continue as", function()
    refused("step 6 | between two syncs | 2 replicas | 4 steps",
      { mesh = "4x1", optimizer = "adamw", load = between })
    refused("fragments | delay | 2 replicas | there are 3",
      { mesh = "3x1", load = delayed, every = 8, fragments = 2, delay = 3 })
    refused("delay = 3 | 8, 2, 2", { mesh = "2x1", load = delayed, every = 8, fragments = 2, delay = 2 })
    refused("momentum 0.9 | 0", { mesh = "2x2", optimizer = "adamw", load = between, outer_momentum = 0,
      nesterov = false })
    refused("replicate_sync | 2 replicas", { mesh = "2x2", optimizer = "adamw", load = between, every = 0 })
    refused("other units | layers.3", { mesh = "2x2", optimizer = "adamw", load = between, always = "layers.3" })
  end)
end)
