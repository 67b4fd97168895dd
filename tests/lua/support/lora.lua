-- What the specs of adapters share: training a fixture as PEFT trained it, and comparing what comes out.

local json = require("cjson")
local assert = require("luassert")
local assert_close = require("lua.support.fixture").assert_close
local compare = require("moonshard.check.tolerance")
local huggingface = require("lua.support.huggingface")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local FIXTURES, values_of = "tests/fixtures/lora/", huggingface.values_of
local TIED = { ["base_model.model.lm_head.weight"] = "base_model.model.model.embed_tokens.weight" }
local STEPS = { gpt2 = 5, llama = 5 }

local lora = { FIXTURES = FIXTURES, F32 = 1e-5 }

---The fixture of the model that a fixture of adapters is for.
---@param name string
---@return string
function lora.base_of(name) return name:match("^[^_]*") end

---A fixture's model with its adapters.
---@param name string
---@return moonshard.Module
function lora.loaded(name)
  return ms.lora.load(ms.huggingface.model(huggingface.FIXTURES .. lora.base_of(name)), FIXTURES .. name)
end

---Trains a fixture's model and adapters as PEFT did.
---@param name string
---@param ranks integer
---@param mesh string
---@param more table<string, any>? options of the recipe
---@param environment string? assignments, for the emulated device cuda
---@return table result of the recipe, and its folder `out`
function lora.train(name, ranks, mesh, more, environment)
  local out = scratch.folder()
  local words = {
    "run", "tests/lua/huggingface/recipes/huggingface.lua", "-n", tostring(ranks), "mesh=" .. mesh,
    "folder=" .. huggingface.FIXTURES .. lora.base_of(name),
    "reference=" .. FIXTURES .. name .. ".safetensors", "out=" .. out,
    "steps=" .. (STEPS[name] or 10), "adapters=" .. FIXTURES .. name,
  }
  for key, value in pairs(more or {}) do words[#words + 1] = ("%s=%s"):format(key, tostring(value)) end
  local ended = program.run(words, environment)
  assert(ended.status == 0, ended.err)
  local result = json.decode(scratch.read(out .. "/result.json"))
  result.out = out
  return result
end

local function assert_tensors(reference, folder, kind, tolerance)
  local file, count = ms.safetensors.open(folder .. "/adapter_model.safetensors"), 0
  for _, tensor in ipairs(file.tensors) do
    local known, theirs = pcall(reference.tensor, reference, kind .. "." .. tensor.name)
    if not known then theirs = reference:tensor(kind .. "." .. TIED[tensor.name]) end
    assert.same(theirs.shape, tensor.shape, tensor.name)
    assert_close(values_of(reference, theirs.name), values_of(file, tensor.name), tolerance, theirs.name)
    if not known then count = count + 1 end -- the parameter has one gradient, and the file two tensors
  end
  for _, tensor in ipairs(reference.tensors) do
    if tensor.name:sub(1, #kind + 1) == kind .. "." then count = count + 1 end
  end
  assert.equal(count, #file.tensors)
end

---Compares what lora.train returned with PEFT's numbers, which it computed in double precision.
---@param name string
---@param result table
function lora.assert_reference(name, result)
  local reference = ms.safetensors.open(FIXTURES .. name .. ".safetensors")
  assert_close(values_of(reference, "logits"), result.logits, lora.F32, "logits")
  assert_close(values_of(reference, "losses"), result.losses, lora.F32, "losses")
  assert_tensors(reference, result.out .. "/gradient", "gradient", lora.F32)
  assert_tensors(reference, result.out .. "/after", "after", compare.PARAMETERS * lora.F32)
end

return lora
