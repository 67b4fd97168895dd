-- Arguments of a wrong type, for every public function: an error of ours that names the caller's line, never one that
-- Lua raises somewhere inside.

local errors = require("moonshard.base.error")
local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local scratch = require("lua.support.scratch")

local folder = scratch.folder()

local NOTHING = {}
local VALUES = { NOTHING, 5, true, folder .. "/none", {}, function() end, { a = 1 }, { 1, 2 } }

local function given(value)
  if value == NOTHING then return nil end
  return value
end

local function check(path, call)
  for _, first in ipairs(VALUES) do
    for _, second in ipairs(VALUES) do
      local ok, raised = pcall(call, given(first), given(second))
      if not ok then
        assert.is_true(errors.is(raised) or false, ("%s(%s, %s): %s"):format(path, tostring(given(first)),
          tostring(given(second)), tostring(raised)))
        has(tostring(raised), "argument_types_spec.lua")
      end
    end
  end
end

-- Not called themselves: the run's own settings and logs are not to change.
local SKIPPED = { args = true, log = true }

describe("arguments of a wrong type", function()
  teardown(scratch.clear)

  for _, space in ipairs({
    "huggingface", "safetensors", "lora", "checkpoint", "loss", "nn", "init", "optim", "schedule", "rules", "data",
  }) do
    it("are refused by each function of ms." .. space, function()
      local functions = 0
      for name, call in pairs(ms[space]) do
        if type(call) == "function" then
          functions = functions + 1
          check(("ms.%s.%s"):format(space, name), call)
        end
      end
      assert.is_true(functions > 0)
    end)
  end

  it("are refused by each function of ms", function()
    for name, call in pairs(ms) do
      if type(call) == "function" and not SKIPPED[name] then check("ms." .. name, call) end
    end
  end)

  it("are refused by ops over axes, by methods of tensors, and by those of a mesh", function()
    for _, name in ipairs({ "sum", "mean", "max", "min", "softmax", "log_softmax", "stack", "all_gather",
      "reduce_scatter", "all_to_all" }) do
      check("ms.ops." .. name, ms.ops[name])
    end
    local x, mesh = ms.ones(2, 3), ms.init_device_mesh("cpu", "1x1", { "replicate", "shard" })
    check("x:slice", function(...) return x:slice(0, ...) end)
    check("ms.trace.graph", ms.trace.graph)
    for _, name in ipairs({ "copies", "contains", "ranks", "size", "get_local_rank", "get_group", "slice" }) do
      check("mesh:" .. name, function(...) return mesh[name](mesh, ...) end)
    end
    has(message(function() ms.arange(0, 0 / 0) end), "ms.arange | nan")
  end)

  it("are refused by the models", function()
    for _, name in ipairs({ "gpt2", "llama", "bert", "mixtral" }) do check("ms.models." .. name, ms.models[name]) end
  end)

  it("are named", function()
    has(message(ms.huggingface.tokenizer), "ms.huggingface.tokenizer | folder | nil")
    has(message(function() ms.huggingface.save(5, folder) end), "ms.huggingface.save | a model or a trainer | 5")
    has(message(function() ms.huggingface.config {} end), "ms.huggingface.config | model | a table")
    has(message(function() ms.safetensors.create(folder .. "/a", "b") end), "ms.safetensors.create | list | b")
    has(message(function() ms.nn.masked_attention(ms.ones(1, 2, 1, 4), 3) end), "ms.nn.masked_attention | k | 3")
    has(message(function() ms.init.normal("0") end), "ms.init.normal | numbers | 0")
  end)
end)
