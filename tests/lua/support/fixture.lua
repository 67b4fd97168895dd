-- What the specs of the Lua layer share: a described world, small models, and the message of an error.

local compare = require("moonshard.check.tolerance")
local ms = require("moonshard")
local engine = require("moonshard.base.ffi")
local world = require("moonshard.distributed.world")

local fixture = {}

---The text of the error that a call raises; fails when it raises none.
function fixture.message(call, ...)
  local ok, raised = pcall(call, ...)
  assert(not ok, "no error was raised")
  return tostring(raised), raised
end

---A GPT-2 of 2 layers, with options changed.
function fixture.gpt2(changes)
  local config = { vocab = 16, layers = 2, dim = 8, heads = 2, seq = 4 }
  for name, value in pairs(changes or {}) do config[name] = value end
  return ms.models.gpt2(config)
end

---A trainer of two linear layers and a norm, each a unit, with settings changed.
function fixture.small_trainer(changes)
  local model = ms.nn.sequential { ms.nn.linear(3, 4), ms.nn.layer_norm { 4 }, ms.nn.linear(4, 2) }
  ms.fully_shard(model, { units = { ms.re[[^\d$]] } })
  local settings = { model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 0.1 } }
  for name, value in pairs(changes or {}) do settings[name] = value end
  return ms.trainer(settings)
end

---A batch for the small trainer.
function fixture.small_batch()
  return { inputs = ms.randn { 6, 3, seed = 1 }, targets = ms.randn { 6, 2, seed = 2 } }
end

---Traces a call of a model on i32 tokens [batch, length] with cross entropy as its loss.
function fixture.trace(model, batch, length)
  return ms.trace.graph(model, {
    inputs = { { "tokens", "i32", { batch, length } }, { "targets", "i32", { batch, length } } },
    fn = function(inputs)
      local logits = model(inputs.tokens)
      return { loss = ms.ops.cross_entropy(logits, inputs.targets), outputs = { logits = logits } }
    end,
  })
end

---The summary of the plan of a traced graph with AdamW.
function fixture.summary(graph)
  local C, ffi = engine.C, engine.ffi
  local config = ffi.new("ms_plan_config")
  engine.check(C.ms_config_default("ms_plan_config", config, ffi.sizeof(config)))
  config.optimizer, config.train = C.MS_OPT_ADAMW, 1
  local plan, summary = ffi.new("ms_plan *[1]"), ffi.new("ms_plan_summary")
  engine.check(C.ms_plan_compile(graph.handle, config, plan))
  engine.check(C.ms_plan_summarize(plan[0], summary, ffi.sizeof(summary)))
  C.ms_free(plan[0])
  return summary
end

-- Acts as if this process were another rank. Returns what action returns.
function fixture.as_rank(rank, size, action)
  local old_rank, old_size = world.rank, world.size
  rawset(world, "rank", rank)
  rawset(world, "size", size)
  local ok, result = pcall(action)
  rawset(world, "rank", old_rank)
  rawset(world, "size", old_size)
  if not ok then error(result, 0) end
  return result
end

---Compares two lists of numbers, with the tolerance of `moonshard check`.
---@param expected number[]
---@param got number[]
---@param tolerance number
---@param what string
function fixture.assert_close(expected, got, tolerance, what)
  assert(#expected == #got, ("%s: %d numbers instead of %d"):format(what, #got, #expected))
  local worst = compare.arrays(expected, got, { count = #expected, tolerance = tolerance })
  if worst and worst.differs then
    error(("%s: %.9g instead of %.9g, %g is allowed"):format(what, worst.got, worst.expected, worst.allowed), 0)
  end
end

return fixture
