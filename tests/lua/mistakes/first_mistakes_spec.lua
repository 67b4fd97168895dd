-- What those run into who come from PyTorch, or to Lua: each is one line with the place, and with what would be right.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local RECIPE = [[
local ms = require "moonshard"
local Net = ms.module "Net"
function Net:init()
  self.layers = ms.nn.sequential { ms.nn.linear(8, 16), ms.ops.relu, ms.nn.linear(16, 4) }
end
function Net:forward(x) return self.layers(x) end
local model = Net()
ms.fully_shard(model, { mesh = 1 })
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse }
for step = 1, 3 do
  local m = train:step { inputs = ms.randn { 6, 8, seed = step }, targets = ms.zeros(6, 4) }
  ms.log(step, m)
end
]]

-- Each has: the line that is wrong, what replaces what in it, and what is said.
local MISTAKES = {
  { 4, "ms.nn.linear%(8", "ms.nn.Linear(8", "ms.nn.Linear | linear?" },
  { 4, "ms.ops.relu", "ms.nn.ReLU()", "ms.nn.ReLU | ms.ops.relu" },
  { 4, "ms.ops.relu", "ms.nn.Parameter(3)", "ms.nn.Parameter | ms.parameter" },
  { 4, "ms.ops.relu", "nil", "ms.nn.sequential | item 2 | nil" },
  { 4, "ms.ops.relu", "ms.nn.mixture_of_experts(16, 8, { num_experts = 2 })", "num_experts | experts?" },
  { 4, "ms.ops.relu", "ms.nn.mixture_of_experts(16, 8, { experts = 2, num_experts_per_tok = 1 })",
    "num_experts_per_tok | top_k?" },
  { 4, "ms.ops.relu", "ms.models.vit { image_size = 8 }", "image_size | size?" },
  { 4, "8, 16", '"8", 16', 'ms.nn.linear | argument 1 (inputs) | integer | 1 | "8"' },
  { 6, "Net:forward%(x%)", "Net.forward(x)", "Net | function Net:forward(x) | colon" },
  { 6, "return self", "local y = self", "forward | nothing | tensor", at = 11 },
  { 6, "self.layers%(x%)", "self.layers(x):numpy()", "tensor | numpy | PyTorch | tolist" },
  { 6, "self.layers%(x%)", "self.layers(x):sofmax()", "tensor | sofmax: | softmax" },
  { 6, "return self", "x[0] = 5 return self", "x[0] = ... | tensor | ms.ops.where" },
  { 8, "{ mesh = 1 }", "ms.init_device_mesh('cpu', 1)", "options | a mesh" },
  { 8, "ms.ful", "ms.fully_shard(model.layers) ms.ful", "ms.fully_shard: | layers.0.weight | already | "
    .. "RECIPE:8" },
  { 9, "adamw {", "adamw { model:parameters(), ", "method 'parameters' (a nil value) | named_parameters" },
  { 9, "adamw {.-}", "adamw(model)", "ms.optim.adamw | options | a module" },
  { 9, "adamw", "Adam", "ms.optim.Adam | adam?" },
  { 9, "adamw", "Adafactor", "ms.optim.Adafactor | adafactor?" },
  { 11, "train:step", "train.step", "train.step | colon | train:step(...)" },
  { 11, "{ inputs = (.*), targets.*", "(%1)", "batch | { inputs = ..., targets = ... }" },
  { 11, "ms.randn { 6, 8, seed = step }", "{ { 1, 2 } }", "batch.inputs | ms.tensor | table" },
  { 11, "6, 4", "6, 1", "ms.loss.mse | [6,4] | [6,1] | equal" },
  { 12, "ms.log", "train:evaluate {} --", "train:evaluate | iterator | data:batches" },
  { 12, "ms.log", "m:backward() --", "method 'backward' (a nil value) | train:step(batch)" },
  { 12, "ms.log", "m.loss:backward() --", "field 'loss' (a number value) | train:step(batch)" },
  { 12, "ms.log", "local loss = m.loss loss:item() --", "local 'loss' (a number value) | train:step(batch)" },
  { 12, "ms.log", "model:eval() --", "method 'eval' (a nil value) | mode | train:step" },
  { 4, "ms.ops.relu", "ms.nn.dropout { p = 0.1 }", "ms.nn.dropout | p | ms.nn.dropout(0.1)" },
  { 4, "8, 16", "8, 16, false", "ms.nn.linear | false | name = value | bias, init" },
  { 6, "self.layers%(x%)", "self.layers(x):sum { dim = 1 }", "sum | dim | axis?" },
  { 6, "self.layers%(x%)", "ms.cat({ x, x }, 0)", "ms.cat | ms.ops.cat" },
  { 8, "mesh = 1", "mesh = ms.init_device_mesh('gpu', 1)", "device | gpu | cuda?" },
  { 8, "mesh = 1", "sharding_strategy = 'FULL_SHARD'", "option sharding_strategy | strategy?" },
  { 8, "mesh = 1", "offload_policy = true", "option offload_policy | device" },
  { 8, "mesh = 1", "mp_policy = 'bf16'", 'mp_policy | "auto" | { param_dtype = "bf16" }' },
  { 9, "ms.loss.mse", "ms.nn.MSELoss()", "ms.nn.MSELoss | ms.loss.mse" },
  { 12, "ms.log", "ms.distributed.barrier() --", "ms.distributed | `moonshard run -n N`" },
  { 12, "ms.log", "ms.save(model) --", "ms.save | ms.checkpoint.save" },
  { 6, "self.layers%(x%)", "self.layers:relu()", "method 'relu' (a nil value) | tensors | layer(x):relu()" },
  { 6, "self.layers%(x%)", "self.layers(x .. x)", "tensors | ms.ops.cat({ x, y }, axis)" },
  { 7, "Net%(%)", "Net", "ms.fully_shard | the class Net | Net(...)", at = 8 },
  { 7, "Net%(%)", "Net() model.layers[1].weight = 3", "layers.0 | field weight | ms.parameter | 3", at = 6 },
  { 4, "self", "self.more = { ms.nn.linear(8, 8), nil, ms.nn.linear(8, 8) } self", "more: | item 3 | item 2 is nil",
    at = 8 },
  { 4, "self", "self.more = { [0] = ms.nn.linear(8, 8), ms.nn.linear(8, 8) } self",
    "more: | [0] | begin at [1] | layers.0", at = 8 },
  { 7, "Net%(%)", "Net() model.layers[0] = ms.nn.linear(8, 16)", "layers: | [0] | begin at [1]", at = 8 },
  { 7, "Net%(%)", "Net() print(model.layers[0].weight)", "attempt to index | a nil value | lists begin at [1]" },
  { 7, "Net%(%)", "Net() model.layers[0](ms.ones(1, 8))", "attempt to call | a nil value | lists begin at [1]" },
  { 7, "Net%(%)", "Net() model.layers[1].weight[0] = 3", "parameter | field 0 | set_parameter" },
  { 7, "Net%(%)", "Net() print(model.layers[1].weight.grad)", "parameter | grad | train:gradient(name)" },
  { 9, "lr = 1e%-2", "lr = 1e-2, betas = 0.9", "ms.optim.adamw | betas | { 0.9, 0.999 }" },
  { 9, "lr = 1e%-2", 'lr = 1e-2, betas = { "a", 1 }', "ms.optim.adamw | betas | { 0.9, 0.999 }" },
  { 9, "loss =", "memory_limit = '1 gig', loss =", 'memory_limit | "2GiB" | "1 gig"' },
  { 11, "inputs =", "input =", "tokens (or inputs) | input, targets" },
  { 12, "ms.log", "ms.generate(train, { prompt = 'a' }) --", "ms.generate | Net | config.vocab" },
  { 4, "ms.ops.relu", "ms.nn.batch_norm2d(16)", "ms.nn.batch_norm2d | no batch norm | ms.nn.group_norm" },
  { 4, "ms.ops.relu", "ms.parameter(ms.randn { 3, 4 })", "ms.parameter | sizes | init | not a tensor" },
  { 8, "mesh = 1", "activation_checkpointing = true", "activation_checkpointing | recompute" },
  { 8, "mesh = 1", "tensor_parallel_degree = 2", "tensor_parallel_degree | ms.init_device_mesh | \"tensor\"" },
  { 8, "mesh = 1", "data_parallel_replicate_degree = 2", "ms.init_device_mesh | \"replicate\"" },
  { 8, "mesh = 1", "expert_parallel_degree = 2", "expert_parallel_degree | not divided | shard" },
  { 8, "mesh = 1", "ignored_params = {}", "ignored_params | freeze" },
  { 8, "mesh = 1", "zero_quantized_weights = true", 'zero_quantized_weights | gather_dtype = "i8"' },
  { 8, "mesh = 1", "backward_prefetch = 1", "backward_prefetch | prefetch" },
  { 8, "mesh = 1", "limit_all_gathers = true", "limit_all_gathers | prefetch" },
  { 8, "mesh = 1", "sync_steps = 8", "sync_steps | every | replicate_sync" },
  { 9, "lr =", "learning_rate =", "learning_rate | lr" },
  { 9, "lr =", "wd = 0.1, lr =", "option wd | weight_decay" },
  { 9, "loss =", "gradient_accumulation_steps = 2, loss =", "gradient_accumulation_steps | micro_batches" },
  { 9, "loss =", "max_grad_norm = 2, loss =", "max_grad_norm | clip_grad_norm" },
  { 9, "loss =", "checkpoint = { save_total_limit = 2 }, loss =", "save_total_limit | keep_last" },
  { 9, "loss =", "checkpoint = { save_freq = 2 }, loss =", "save_freq | every" },
  { 12, "ms.log", "model:load_state_dict({}, { strict = false }) --", "strict | every parameter" },
  { 1, "local ms", "require('moonshard').data.text { path = 'a' } local ms", "option path | files?" },
  { 1, '"moonshard"', '"monshard"', "module 'monshard' not found | moonshard?" },
  { 1, '"moonshard"', '"a.b"', "module 'a.b' not found | a/b.lua | LUA_PATH" },
  { 8, "ms.ful", "model:fully_shard() ms.ful", "method 'fully_shard' (a nil value) | ms.fully_shard(model" },
  { 8, "mesh = 1", "mp_policy = { params_dtype = 'bf16' }", "mp_policy | params_dtype | param_dtype?" },
  { 8, "mesh = 1", "units = { layers = true }", "units | layers | list | { \"layers\", value" },
  { 8, "mesh = 1", "reshard_after_forward = { root = true }", "root | list | { \"root\", value" },
  { 8, "mesh = 1", "recompute = { layers = true }", "recompute | layers | list | { \"layers\", value" },
  { 8, "mesh = 1", "prefetch = { root = 2 }", "prefetch | root | list | { \"root\", value" },
  { 8, "mesh = 1", "param_dtype = { ['layers.0'] = 'bf16' }", "param_dtype | layers.0 | list" },
  { 8, "mesh = 1", 'units = { ms.re"layers%%.%%d" }', "layers%.%d | none | \\d | Lua's" },
  { 8, "mesh = 1", "reshard_after_forward = { 'layers.0', false }", 'list | { { "layers.0", false } }' },
  { 8, "mesh = 1", "prefetch = { ms.re'layers', 2 }", "list | { { re[[layers]], 2 } }" },
  { 8, "mesh = 1", "mesh = { shard = 1 }", "mesh | shard | list | { 2, 2 } | ms.init_device_mesh" },
  { 8, "mesh = 1", "strategy = 'HSDP'", "strategy | HSDP | HYBRID_SHARD?" },
  { 9, "lr = 1e%-2", "lr = 1e-2, betas = { 0.9 }", "betas | { 0.9, 0.999 } | a table of 1" },
  { 9, "adamw { (.-) }", "sgd { %1, nesterov = true }", "nesterov needs momentum" },
  { 9, "lr = 1e%-2", "lr = ms.schedule.CosineAnnealingLR(1)", "CosineAnnealingLR | ms.schedule.cosine" },
  { 9, "lr = 1e%-2", "lr = ms.schedule.StepLR(1)", "ms.schedule.StepLR | constant, linear, cosine | wsd" },
  { 9, "ms.loss.mse", "ms.loss.kl_div", "ms.loss.kl_div | ms.loss.distillation" },
  { 9, "ms.loss.mse", "ms.init.xavier()", "ms.init.xavier | kaiming_uniform" },
  { 7, "Net%(%)", "ms.AutoModelForCausalLM.from_pretrained('a')", "ms.AutoModelForCausalLM | ms.huggingface.model" },
  { 7, "Net%(%)", "ms.models.llama { n_layer = 2 }", "n_layer | layers?" },
  { 7, "Net%(%)", "ms.models.gpt2 { n_embd = 2 }", "n_embd | dim?" },
  { 7, "Net%(%)", "ms.models.gpt2 { n_head = 2 }", "n_head | heads?" },
  { 12, "ms.log", "print(ms.world().world_size)", "ms.world().world_size | rank | size" },
  { 12, "ms.log", "ms.log.info('a')", "ms.log.info | curve, expect, print, spikes" },
  { 12, "ms.log", "print(ms.trace.profile)", "ms.trace.profile | graph" },
  { 5, "end", "if 1 != 2 then end end", "'then' expected near '!' | ~=" },
  { 5, "end", "self.n += 1 end", "near '+' | x = x + 1" },
}

local function with_mistake(mistake)
  local lines = {}
  for line in RECIPE:gmatch("[^\n]*\n") do lines[#lines + 1] = line end
  local changed, times = lines[mistake[1]]:gsub(mistake[2], mistake[3], 1)
  assert.equal(1, times)
  lines[mistake[1]] = changed
  return program.recipe(table.concat(lines))
end

describe("a first recipe", function()
  it("that is wrong is refused with what would be right", function()
    local paths, runs = {}, {}
    for i, mistake in ipairs(MISTAKES) do
      paths[i] = with_mistake(mistake)
      runs[i] = { "run", paths[i] }
    end
    local ended = program.run_all(runs)
    for i, mistake in ipairs(MISTAKES) do
      os.remove(paths[i])
      local err = ended[i].err:gsub(paths[i]:gsub("%p", "%%%0"), "RECIPE")
      err = err:match("moonshard: .*") or err -- a busy machine also says what takes long
      -- Line 12 comes after the first step.
      assert.equal(mistake[1] == 12 and 3 or 2, ended[i].status, mistake[4] .. "\n" .. err)
      local place = ("moonshard: RECIPE:%d: "):format(mistake.at or mistake[1])
      assert.equal(place, err:sub(1, #place), err)
      has(err, mistake[4])
      assert.equal("\n", err:match("\n.*"))
    end
  end)

  it("that does not say how many steps it takes ends with the line of its last step", function()
    local path = program.recipe(RECIPE)
    local ended = program.run({ "run", path })
    os.remove(path)
    assert.equal(0, ended.status, ended.err)
    local steps = {}
    for step in ended.out:gmatch("step (%d+)  loss") do steps[#steps + 1] = tonumber(step) end
    assert.same({ 1, 3 }, steps)
  end)
end)
