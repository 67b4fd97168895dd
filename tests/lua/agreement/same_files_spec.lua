-- Checkpoints and folders of weights that ranks read by a path of their own: all ranks refuse other contents before
-- they train on a mixture, and name both; copies at other paths are taken.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- With `make`, writes what the ranks read: of two models, and copies of the first.
local RECIPE = [[
local ms = require "moonshard"
local ffi = require "ffi"
ffi.cdef "int chdir(const char *);"
local cfg = ms.args { make = "", first = "", other = "", what = "load", into = "trainer", at = "",
  base = "", merge = false, drawn = -1 }
local mine = ms.world().rank == 1 and cfg.other or cfg.first
local function trainer(seed, o)
  local model = ms.nn.linear(8, 2)
  ms.fully_shard(model, { seed = seed })
  return ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.1 }, loss = ms.loss.mse, checkpoint = o }
end
if cfg.make ~= "" then
  for seed, name in ipairs { "a", "b" } do
    local train = trainer(seed)
    train:step { inputs = ms.randn { 4, 8, seed = seed }, targets = ms.zeros { 4, 2 } }
    ms.checkpoint.save(train, cfg.make .. "/" .. name .. "/ck")
  end
  for seed, name in ipairs { "a", "b" } do
    local sizes = { vocab = 256, layers = 1, dim = 16, heads = 2, seq = 32, ffn = 32 }
    local whole = ms.models.llama(sizes)
    ms.fully_shard(whole, { seed = seed })
    ms.huggingface.save(whole, cfg.make .. "/" .. name .. "/hf")
    local adapted = ms.lora(ms.huggingface.model(cfg.make .. "/a/hf"), { { ms.re"wq", { rank = 2 } } })
    ms.fully_shard(adapted, { seed = seed })
    ms.lora.save(adapted, cfg.make .. "/" .. name .. "/lora")
  end
  os.execute(("cp -r %s/a %s/c"):format(cfg.make, cfg.make))
  return
end
if cfg.at ~= "" then
  ffi.C.chdir(mine)
  mine = cfg.at
end
local train
if cfg.what == "values" then
  local model = cfg.base == "" and ms.huggingface.model(mine) or ms.huggingface.model(cfg.base)
  if cfg.base ~= "" then ms.lora.load(model, mine) end
  if cfg.merge then ms.lora.merge(model) end
  if ms.world().rank ~= cfg.drawn then mine = nil end
  if mine then model = ms.models.llama { vocab = 256, layers = 1, dim = 16, heads = 2, seq = 32, ffn = 32 } end
  ms.fully_shard(model)
  model:parameter("norm.weight")
elseif cfg.what == "resume" then train = trainer(3, { dir = mine, resume = "auto" })
else
  train = trainer(3)
  ms.checkpoint.load(cfg.into == "model" and train.model or train, mine)
end
if ms.world().rank == 0 then print("read") end
]]

local NAMES = "rank 0 | rank 1 | step 1 | a/ck/step-00000001 | b/ck/step-00000001"
local WITHIN = "rank 0 | rank 1 | step 1 | ck/step-00000001"

local ADAPTED = "base=MADE/a/hf" -- MADE: the folder that all is in

-- What is read by each rank, how, and what the message has; nil: it is taken.
local CASES = {
  ["checkpoints"] = { "a/ck", "b/ck", "what=load", says = "ms.checkpoint.load: | " .. NAMES },
  ["checkpoints by their steps"] = { "a/ck/step-00000001", "b/ck/step-00000001", "what=load", says = NAMES },
  ["checkpoints, into a model"] = { "a/ck", "b/ck", "into=model", says = NAMES },
  ["a relative path"] = { "a", "b", "at=ck", says = WITHIN },
  ["a relative path, resumed"] = { "a", "b", "what=resume", "at=/proc/self/cwd/ck", says = WITHIN },
  ["folders of models"] = { "a/hf", "b/hf", "what=values",
    says = "first use | rank 0 | rank 1 | a/hf | b/hf" },
  ["folders at a relative path"] = { "a", "b", "what=values", "at=hf", says = "rank 0 | rank 1 | hf | contents" },
  ["a model from a folder, and one that is drawn"] = { "a/hf", "a/hf", "what=values", "drawn=1",
    says = "read from files | rank 0 | 0 on rank 1 | a/hf" },
  ["adapters"] = { "a/lora", "b/lora", "what=values", ADAPTED, says = "rank 0 | rank 1 | a/lora | b/lora | contents" },
  ["adapters at a relative path"] = { "a", "b", "what=values", ADAPTED, "at=lora",
    says = "rank 0 | rank 1 | contents" },
  ["merged adapters"] = { "a/lora", "b/lora", "what=values", ADAPTED, "merge=true",
    says = "a/lora | b/lora | contents" },
  ["copies of a folder"] = { "a/hf", "c/hf", "what=values" },
  ["copies of a folder at a relative path"] = { "a", "c", "what=values", "at=hf" },
  ["copies of adapters"] = { "a/lora", "c/lora", "what=values", ADAPTED },
  ["copies of merged adapters"] = { "a/lora", "c/lora", "what=values", ADAPTED, "merge=true" },
  ["copies of a checkpoint"] = { "a/ck", "c/ck" },
  ["copies, into a model"] = { "c/ck", "a/ck", "into=model" },
  ["copies of a checkpoint at a relative path"] = { "a", "c", "at=ck" },
}

describe("files that ranks read", function()
  local path, ended

  setup(function()
    path = program.recipe(RECIPE)
    local made = scratch.folder()
    local maker = program.run({ "run", path, "make=" .. made })
    assert.equal(0, maker.status, maker.err)
    local runs = {}
    for name, case in pairs(CASES) do
      local words = { "run", path, "-n", "2", "--timeout", "60", "first=MADE/" .. case[1], "other=MADE/" .. case[2],
        unpack(case, 3) }
      for i, word in ipairs(words) do words[i] = word:gsub("MADE", made) end
      runs[name] = words
    end
    ended = program.run_all(runs)
  end)
  teardown(function()
    os.remove(path)
    scratch.clear()
  end)

  it("U1 are refused on all ranks where contents differ, and named", function()
    for name, case in pairs(CASES) do
      if case.says then
        assert.not_equal(0, ended[name].status, name)
        has(ended[name].err, case.says)
        assert.equal("", ended[name].out, name)
      end
    end
  end)

  it("U1 can be copies at other paths", function()
    for name, case in pairs(CASES) do
      if not case.says then
        assert.equal(0, ended[name].status, name .. ": " .. ended[name].err)
        assert.equal("read\n", ended[name].out, name)
      end
    end
  end)
end)
