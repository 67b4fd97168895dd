-- Options and names of PyTorch, torchtitan, Megatron, DeepSpeed and trainers elsewhere: each is answered with what to
-- write here, wherever it is written.

local message = require("lua.support.fixture").message
local ms = require("moonshard")
local nearest = require("moonshard.base.names.nearest")
local names_elsewhere = require("moonshard.base.names.names_elsewhere")
local other_names = require("moonshard.base.names.other_names")
local has = require("lua.support.message").has

local function shard(name) ms.fully_shard(ms.nn.linear(2, 2), { [name] = 1 }) end

local function trainer(name)
  ms.trainer { model = ms.nn.linear(2, 2), loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 }, [name] = 1 }
end

local function checkpoint(name)
  ms.trainer { model = ms.nn.linear(2, 2), loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 },
    checkpoint = { dir = "/nowhere", [name] = 1 } }
end

local function adamw(name) ms.optim.adamw { lr = 1, [name] = 1 } end
local function text(name) ms.data.text { seq = 4, batch = 1, [name] = "x" } end

describe("a name of another library", function()
  for name, case in pairs({
    activation_checkpointing = { shard, "mean recompute" }, activation_checkpoint = { shard, "mean recompute" },
    gradient_checkpointing = { shard, "mean recompute" }, backward_prefetch = { shard, "mean prefetch" },
    limit_all_gathers = { shard, "prefetch | nothing to set" }, ignored_params = { shard, "unit | freeze" },
    requires_grad = { shard, "freeze" }, tensor_parallel_degree = { shard, "dimension tensor" },
    context_parallel_degree = { trainer, "dimension context" }, expert_parallel_degree = { trainer, "experts | shard" },
    data_parallel_replicate_degree = { shard, "dimension replicate" }, sync_steps = { shard, "replicate_sync" },
    zero_quantized_weights = { shard, "gather_dtype" }, gradient_accumulation_steps = { trainer, "micro_batches" },
    grad_clip = { trainer, "clip_grad_norm" }, max_grad_norm = { trainer, "clip_grad_norm" },
    save_total_limit = { checkpoint, "keep_last" }, save_freq = { checkpoint, "mean every" },
    interval = { checkpoint, "mean every" }, save_steps = { trainer, "checkpoint | every" },
    learning_rate = { adamw, "mean lr" }, wd = { adamw, "mean weight_decay" }, path = { text, "mean files" },
    weight_decay = { trainer, "optimizer | weight_decay" }, lr = { trainer, "optimizer | lr" },
  }) do
    it(name .. " is answered", function() has(message(case[1], name), name .. " | " .. case[2]) end)
  end

  it("of a function or a type is answered, too", function()
    has(message(function() return ms.nn.batch_norm2d(3) end), "batch_norm2d | group_norm")
    has(message(function() return ms.nn.BatchNorm1d(3) end), "group_norm")
    has(message(ms.fully_shard, ms.nn.linear(2, 2), { mp_policy = { param_dtype = "float16" } }), "float16 | bf16")
    has(message(function() ms.nn.linear(2, 2):load_state_dict({}, { strict = false }) end), "strict | part")
  end)

  it("names only what is there", function()
    local where = { ["ms.fully_shard"] = ms.fully_shard, ["ms.trainer"] = ms.trainer,
      ["ms.optim.adamw"] = ms.optim.adamw, ["ms.nn.group_norm"] = ms.nn.group_norm,
      ["ms.init_device_mesh"] = ms.init_device_mesh }
    for _, name in ipairs({ "requires_grad", "lr", "tensor_parallel_degree", "batch_norm", "grad_clip" }) do
      local advice, found = other_names.of_option(name), 0
      for mentioned in advice:gmatch("ms%.[%w_.]+") do
        assert.truthy(where[mentioned], mentioned)
        found = found + 1
      end
      assert.is_true(found > 0, advice)
    end
    has(nearest.called_here("learning_rate", { lr = true }), "mean lr")
    assert.is_nil(nearest.called_here("learning_rate", { files = true }))
  end)

  for name, facts in pairs({
    FSDP = "ms.fully_shard", DDP = "replicate", DistributedDataParallel = "replicate", DataLoader = "data:batches",
    DistributedSampler = "ms.data.sampler", autocast = "mp_policy", GradScaler = "mp_policy", compile = "compiled",
    no_sync = "micro_batches", Accelerator = "moonshard run", Trainer = "ms.trainer", set_seed = "seed",
    lr_scheduler = "ms.schedule", parallel = "ms.fully_shard",
  }) do
    it(name .. " as a field is answered", function()
      for holder, fields in pairs({ ms = ms, ["ms.nn"] = ms.nn, ["ms.optim"] = ms.optim }) do
        has(message(function() return fields[name] end), holder .. "." .. name .. " | " .. facts)
      end
    end)
  end
end)

-- Gives each place an option that does not exist.
local PLACES = {
  ["ms.trainer"] = trainer,
  ["checkpoint of ms.trainer"] = checkpoint,
  ["ms.optim.adamw"] = adamw,
  ["ms.schedule.cosine"] = function(name) ms.schedule.cosine { peak = 1, [name] = 1 } end,
  ["ms.data.text"] = function(name) ms.data.text { [name] = 1 } end,
  ["ms.fully_shard"] = shard,
  ["mp_policy of ms.fully_shard"] = function(name)
    ms.fully_shard(ms.nn.linear(2, 2), { mp_policy = { [name] = 1 } })
  end,
  ["ms.generate"] = function(name) ms.generate(ms.nn.linear(2, 2), { [name] = 1 }) end,
}

describe("the table of other names", function()
  local valid = {}
  for place, give in pairs(PLACES) do
    valid[place] = {}
    for option in message(give, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"):match("valid are (.*)"):gmatch("[%w_]+") do
      valid[place][option] = true
    end
  end

  it("is answered with an option that its place has, and is none itself", function()
    local count = 0
    for _, known in ipairs(names_elsewhere.all()) do
      count = count + 1
      if known.place then
        assert.truthy(valid[known.place], known.place)
        assert.is_true(valid[known.place][known.here], known.place .. ": " .. known.here)
        assert.is_nil(valid[known.place][known.name], known.place .. ": " .. known.name)
      end
      for mentioned in (known.text or known.place):gmatch("ms%.[%w_.]*[%w_]") do
        local value = ms
        for field in mentioned:sub(4):gmatch("[%w_]+") do value = value[field] end
        assert.truthy(value, mentioned)
      end
    end
    assert.is_true(count >= 120, count)
  end)

  it("is refused with that answer at its place", function()
    for _, known in ipairs(names_elsewhere.all()) do
      if known.place then has(message(PLACES[known.place], known.name), known.name .. " | did you mean") end
    end
  end)

  it("is answered at another place, too, with the place that has it", function()
    has(message(PLACES["ms.trainer"], "block_size"), "seq | ms.data.text")
    has(message(PLACES["ms.trainer"], "epochs"), "data:batches")
    has(message(PLACES["ms.fully_shard"], "pipeline_parallel_degree"), "dimension pipe")
    has(message(function() return ms.nn.Conv2d end), "mean conv2d")
    has(message(function() return ms.optim.LBFGS end), "adamw")
  end)

  it("is no reason for a guess that is far away", function()
    assert.is_nil(message(function() return ms.seed end):find("did you mean", 1, true))
    has(message(PLACES["ms.fully_shard"], "recomptue"), "mean recompute")
  end)

  it("is not that of the function that the call of a layer runs", function()
    local Net = ms.module "Net"
    function Net:init() self.fc = ms.nn.linear(2, 2) end
    function Net:forward(x) return self.fc.forward(x) end
    local said = message(function() Net()(ms.ones { 2, 2 }) end)
    has(said, "forward | colon")
    assert.is_nil(said:find("forward_in", 1, true))
  end)

  it("is followed by what to give, where a value has the wrong type", function()
    has(message(function() ms.trainer { model = ms.nn.linear(2, 2), optimizer = "adamw" } end), "ms.optim.adamw")
    has(message(function() ms.trainer { model = ms.nn.linear(2, 2), optimizer = {}, loss = "mse" } end), "ms.loss.mse")
    has(message(function() ms.schedule.cosine { lr = 1 } end), "mean peak")
  end)
end)

describe("a tensor that is none", function()
  local Net = ms.module "Net"
  function Net:init() self.fc = ms.nn.linear(2, 2) end
  function Net:forward(x) return self.made(self.fc(x)) end

  local function traced(made)
    local net = Net()
    rawset(net, "made", made)
    return message(function() return net(ms.ones { 2, 2 }) end)
  end

  it("is said to have no value, in a forward and outside of one", function()
    has(traced(function(x) return x + x.bias_of_nothing end) or "", "bias_of_nothing")
    has(traced(function(x) return ms.ops.add(x, nil) end), "add | nil | never assigned")
    has(message(function() return ms.ops.add(ms.ones(2), nil) end), "add | nil | never assigned")
  end)

  it("is the receiver of a method that was called with a dot", function()
    has(traced(function(x) return x.relu() end), "relu | colon")
    has(message(function() return ms.ones(2).relu() end), "relu | colon")
  end)

  it("is a table that a forward returned, for a loss", function()
    has(message(function() return ms.loss.mse({ ms.ones(2) }, ms.ones(2)) end), "ms.loss.mse | table | forward")
  end)
end)
