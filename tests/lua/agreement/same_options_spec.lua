-- Options of a trainer, of its checkpoints, and of saves and loads by hand that differ between ranks: all ranks refuse
-- them before they act on any, and name the option.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- Rank 1 changes the options by one line.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { dir = "", change = "", use = "" }
local model = ms.nn.sequential { ms.nn.linear(4, 8), ms.nn.dropout(0.5), ms.nn.linear(8, 4) }
ms.fully_shard(model, { mesh = 2 })
local o = { model = model, optimizer = ms.optim.adamw { lr = 0.01 }, loss = ms.loss.mse, pad = { inputs = 0 } }
local c = cfg.use == "" and { dir = cfg.dir } or {}
local s, l, h = {}, {}, { folder = cfg.dir .. "/hf" }
if ms.world().rank == 1 then assert(loadstring("local ms, o, c, s, l, h = ... " .. cfg.change))(ms, o, c, s, l, h) end
if c.dir then o.checkpoint = c end
local train = ms.trainer(o)
for step = 1, 2 do train:step { inputs = ms.randn { 4, 4, seed = step }, targets = ms.zeros(4, 4) } end
if cfg.use ~= "" then
  ms.checkpoint.save(train, cfg.dir, s)
  ms.checkpoint.finish(train)
  ms.checkpoint.load(train, cfg.dir, l)
  local whole = ms.models.gpt2 { vocab = 16, layers = 1, dim = 8, heads = 2, seq = 8 }
  ms.fully_shard(whole, { mesh = 2 })
  ms.huggingface.save(whole, h.folder, { dtype = h.dtype, max_shard_size = h.size })
end
if ms.world().rank == 0 then print("trained") end
]]

local RANKS = " | rank 0 | rank 1"

-- What is refused, by the line that changes it, and what its message has.
local REFUSED = {
  ["o.seed = 3"] = "ms.trainer: | seed of ms.trainer is 0 on rank 0 and 3 on rank 1 | dropout",
  ["o.pad = { inputs = 1 }"] = "pad | inputs = 0 | inputs = 1" .. RANKS,
  ["o.pad = nil"] = "ms.trainer: | pad | inputs = 0 on rank 0 | not given on rank 1",
  ["c.dir = nil"] = "checkpoint.dir of ms.trainer | and none on rank 1" .. RANKS,
  ['c.dir = ""'] = "checkpoint.dir of ms.trainer | and none on rank 1" .. RANKS,
  ["o.micro_batches = 2"] = "micro_batches of ms.trainer is 1" .. RANKS,
  ['o.gradient_sync = "last"'] = "gradient_sync of ms.trainer is every" .. RANKS,
  ["o.clip_grad_norm = 1"] = "clip_grad_norm of ms.trainer is 0" .. RANKS,
  ["o.clip_grad_value = 1"] = "clip_grad_value of ms.trainer is 0" .. RANKS,
  ["o.prefetch = 2"] = "prefetch of ms.trainer is nil" .. RANKS,
  ["o.reshard_after_backward = false"] = "reshard_after_backward of ms.trainer is true" .. RANKS,
  ["o.rematerialize = false"] = "rematerialize of ms.trainer is true" .. RANKS,
  ["o.ema = 0.9"] = "ema.decay 0 | ema.decay 0.9",
  ["c.keep_last = 1"] = "ms.trainer: | checkpoint.keep_last of ms.trainer is 2 on rank 0 and 1 on rank 1",
  ["c.every = 1"] = "checkpoint.every of ms.trainer is 0" .. RANKS,
  ["c.async = false"] = "checkpoint.async of ms.trainer is true" .. RANKS,
  ['c.dir = c.dir .. "2"'] = "checkpoint.dir" .. RANKS,
  ['c.resume = "auto"'] = "checkpoint.resume of ms.trainer is none" .. RANKS,
  ["c.data = ms.data.sampler { length = 8 }"] = "checkpoint.data of ms.trainer is not given" .. RANKS,
}
local BY_HAND = {
  ["s.keep_last = 1"] = "ms.checkpoint.save: | keep_last is all" .. RANKS,
  ["s.async = true"] = "ms.checkpoint.save: | async is false" .. RANKS,
  ["s.data = ms.data.sampler { length = 8 }"] = "ms.checkpoint.save: | data is not given on rank 0 and given on rank 1",
  ['h.dtype = "bf16"'] = "ms.huggingface.save: | dtype is not given on rank 0 and bf16 on rank 1",
  ['h.size = "1MB"'] = "ms.huggingface.save: | max_shard_size is not given" .. RANKS,
  ['h.folder = h.folder .. "2"'] = "ms.huggingface.save: | the folder is" .. RANKS,
  ["l.generator = false"] = "ms.checkpoint.load: | generator is true" .. RANKS,
}
-- Each host can have its own.
local TAKEN = { 'o.memory_limit = "1GiB"', 'o.plan_memory = "8MiB"', "" }

-- Rank 1 works in another folder, and the path is relative.
local MOVES = { { change = 'local f = require("ffi") f.cdef "int chdir(const char *);" f.C.chdir("/tmp")' } }
MOVES[2] = { change = MOVES[1].change .. " ", use = true }

describe("options of ranks that train together", function()
  local path, ended

  setup(function()
    path = program.recipe(RECIPE)
    local runs = {}
    local function add(change, use, dir)
      runs[change] = { "run", path, "-n", "2", "--timeout", "60", "dir=" .. (dir or scratch.path()),
        "change=" .. change, use and "use=hand" or nil }
    end
    for _, move in ipairs(MOVES) do add(move.change, move.use, "build/of_one_place") end
    for change in pairs(REFUSED) do add(change) end
    for change in pairs(BY_HAND) do add(change, true) end
    for _, change in ipairs(TAKEN) do add(change, true) end
    ended = program.run_all(runs)
  end)
  teardown(function()
    os.remove(path)
    scratch.clear()
  end)

  it("U1 are refused where a relative path is another folder on each rank", function()
    for _, move in ipairs(MOVES) do
      assert.equal(move.use and 3 or 2, ended[move.change].status)
      has(ended[move.change].err, "build/of_one_place | working directory | rank 0 and /tmp on rank 1")
    end
    assert.is_nil(io.open("build/of_one_place"))
  end)

  it("U1 are refused on all ranks where they differ, and named", function()
    for _, list in ipairs({ REFUSED, BY_HAND }) do
      for change, facts in pairs(list) do
        assert.not_equal(0, ended[change].status, change)
        has(ended[change].err, facts)
        assert.equal("", ended[change].out, change)
      end
    end
  end)

  it("U1 can differ in limits of memory", function()
    for _, change in ipairs(TAKEN) do
      assert.equal(0, ended[change].status, change .. ": " .. ended[change].err)
      has(ended[change].out, "trained")
    end
  end)
end)
