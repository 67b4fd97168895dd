-- Loads that some or all ranks refuse, caught by the recipe. Each rank writes what it caught, whether its trainer and
-- data are as before, and whether the next step works, to FOLDER/said.RANK: "CASE: error | kept | steps".

local ms = require "moonshard"
local cfg = ms.args { folder = "" }
local rank = ms.world().rank

local function data_of(seed) return ms.data.random { length = 16, inputs = 4, targets = 2, seed = seed } end

local function new_trainer(seed, checkpoint, model)
  if not model then
    model = ms.nn.linear(4, 2)
    ms.fully_shard(model, { mesh = "1x2", seed = seed })
  end
  return ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.1 }, loss = ms.loss.mse, ema = 0.5,
    checkpoint = checkpoint }
end

local function batch() return { inputs = ms.randn { 2, 4, seed = rank }, targets = ms.ones(2, 2) } end

-- A data object of a recipe; `fails` is the rank whose load_state raises where the position is a loaded one.
local function counter(fails, has_state)
  local counts = { at = 5 }
  if has_state then function counts:state() return { at = self.at } end end
  function counts:load_state(state)
    self.at = state.at
    if fails == rank and state.at ~= 5 then error("no such shard") end
  end
  return counts
end

local function described(train, data)
  local parts = { train.steps_done, train.session.updates, data and data.at or "" }
  for _, name in ipairs { "weight", "bias" } do
    parts[#parts + 1] = train:parameter(name):values()
    for _, what in ipairs { "exp_avg", "exp_avg_sq", "ema", "step" } do
      parts[#parts + 1] = train:optimizer_state(name, what):values()
    end
  end
  for i, part in ipairs(parts) do parts[i] = tostring(part) end
  return table.concat(parts, " ")
end

local said = assert(io.open(("%s/said.%d"):format(cfg.folder, rank), "w"))

local function say(case, text)
  said:write(("%s: %s\n"):format(case, (text:gsub("\n", " "))))
  said:flush()
end

local function tried(case, train, data, load)
  local before = described(train, data)
  local ok, raised = pcall(load)
  local kept = before == described(train, data) and "kept" or "changed"
  local steps, why = pcall(train.step, train, batch())
  say(case, ("%s | %s | %s"):format(ok and "loaded" or tostring(raised), kept, steps and "steps" or tostring(why)))
end

-- What is loaded: one checkpoint of the library's data, one of a recipe's, one of none.
local first = new_trainer(1)
local random = data_of(1)
for _, one in random:batches(ms.data.sampler { length = 16 }, 2) do
  first:step(one)
  if first.steps_done == 3 then break end
end
local with_data = ms.checkpoint.save(first, cfg.folder .. "/data", { data = random })
local without = ms.checkpoint.save(first, cfg.folder .. "/none")
local counted = ms.checkpoint.save(first, cfg.folder .. "/counted", { data = {
  state = function() return { at = 9 } end, load_state = print } })
local ranked = ms.checkpoint.save(first, cfg.folder .. "/ranked", { data = {
  state = function() return { at = 9 + rank } end, load_state = print } })

local train = new_trainer(2)
train:step(batch())
local other = data_of(2)
tried("seed", train, nil, function() ms.checkpoint.load(train, with_data, { data = other }) end)
tried("none", train, nil, function() ms.checkpoint.load(train, without, { data = data_of(1) }) end)
for _, path in ipairs { counted, ranked } do
  local data = counter(1, true)
  tried("one rank", train, data, function() ms.checkpoint.load(train, path, { data = data }) end)
end

-- Without a way back the trainer waits for a load that has data, too.
local lost = counter(0, false)
tried("lost", train, nil, function() ms.checkpoint.load(train, counted, { data = lost }) end)
ms.checkpoint.load(train, counted)
say("lost", "without data: " .. tostring(select(2, pcall(train.step, train, batch()))))
local found = counter(nil, true)
ms.checkpoint.load(train, counted, { data = found })
tried("found", train, found, function() error("nothing", 0) end)

-- A resume that is refused leaves the model to another trainer as it was.
local function resumed(case, model, checkpoint)
  local before = tostring(model:parameter("weight"):values())
  local ok, raised = pcall(new_trainer, 0, checkpoint, model)
  local kept = tostring(model:parameter("weight"):values()) == before
  local next_one = new_trainer(0, nil, model)
  say(case, ("%s | %s | step %d"):format(ok and "resumed" or tostring(raised), kept and "kept" or "changed",
    next_one.steps_done))
  next_one:step(batch())
  say(case, ("updates %s"):format(next_one:optimizer_state("bias", "step"):values()))
end

local function fresh_model(seed)
  local model = ms.nn.linear(4, 2)
  ms.fully_shard(model, { mesh = "1x2", seed = seed })
  return model
end

resumed("other data", fresh_model(3), { dir = cfg.folder .. "/data", resume = "auto", data = other })
resumed("another run", fresh_model(4), { dir = cfg.folder .. "/none", resume = with_data,
  data = data_of(1) })
