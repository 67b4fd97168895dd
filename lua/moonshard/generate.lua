-- Sampling from a byte model: one forward a byte over a window of the model's length.
--
-- Every rank takes part, since the weights are sharded; rank 0's choice is everybody's.

local engine = require("moonshard.ffi")
local errors = require("moonshard.error")
local ops = require("moonshard.ops")
local options = require("moonshard.options")
local session = require("moonshard.session")
local ffi = engine.ffi

-- A 31-bit Lehmer generator (Park & Miller 1988): exact in doubles, the same everywhere.
local function random(seed)
  local state = seed % 2147483646 + 1
  return function()
    state = state * 48271 % 2147483647
    return state / 2147483647
  end
end

-- The k largest logits as { token, logit }, largest first.
local function top(logits, vocab, k)
  local list = {}
  for token = 0, vocab - 1 do list[token + 1] = { token, logits[token] } end
  table.sort(list, function(a, b)
    if a[2] ~= b[2] then return a[2] > b[2] end
    return a[1] < b[1]
  end)
  for i = #list, k + 1, -1 do list[i] = nil end
  return list
end

local function choose(logits, vocab, o, draw)
  local list = top(logits, vocab, o.temperature == 0 and 1 or o.top_k)
  local best, sum, weight = list[1][2], 0, {}
  for i, candidate in ipairs(list) do
    weight[i] = math.exp((candidate[2] - best) / math.max(o.temperature, 1e-6))
    sum = sum + weight[i]
  end
  local left = draw() * sum
  for i, candidate in ipairs(list) do
    left = left - weight[i]
    if left <= 0 then return candidate[1] end
  end
  return list[#list][1]
end

---Continues a prompt. Collective.
---@param trainer moonshard.Trainer|moonshard.Module
---@param o { prompt: string?, bytes: integer?, temperature: number?, top_k: integer?, seed: integer? }?
---@return string the continuation alone
local function generate(trainer, o)
  o = options.parse("ms.generate", o, {
    prompt = { "string", default = "\n" },
    bytes = { "positive", default = 300 },
    temperature = { "number", default = 0.8 },
    top_k = { "positive", default = 50 },
    seed = { "seed", default = 1 },
  })
  if o.temperature < 0 then errors.invalid("ms.generate: temperature must not be negative") end
  if o.prompt == "" then errors.invalid("ms.generate: the prompt must have at least one byte") end
  local model = trainer.model or trainer
  local window, vocab = model.config.seq, model.config.vocab
  local spec = { name = "tokens", dtype = "i32", shape = { 1, window } }
  local running = session.of(model)
  local exec = running:exec("generate", { spec }, function(inputs)
    return { outputs = { logits = ops.cast(model(inputs.tokens), { out_dtype = "f32" }) } }
  end, { train = false })
  local tokens = ffi.new("int32_t[?]", window)
  local array = { data = tokens, dtype = "i32", shape = spec.shape }
  local text, draw, made = o.prompt, random(o.seed), {}
  for i = 1, o.bytes do
    local used = math.min(#text, window)
    for t = 0, window - 1 do tokens[t] = t < used and text:byte(#text - used + t + 1) or 0 end
    exec:write("tokens", array, 0, window)
    exec:run("evaluate")
    local logits = exec:output("logits", "f32") + (used - 1) * vocab
    made[i] = string.char(running:gather(choose(logits, vocab, o, draw), "of the next token")[1])
    text = text:sub(-window) .. made[i]
  end
  return table.concat(made)
end

return generate
