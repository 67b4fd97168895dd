-- Frozen parameters that are kept in bf16, i8 or nf4: what they read back as, what they cost, meshes, files,
-- checkpoints, adapters on top of them (QLoRA), and mistakes.

local engine = require("moonshard.base.ffi")
local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local message_of = require("lua.support.message")
local has = message_of.has
local json = require("cjson")
local message = fixture.message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local re = ms.re
local C, ffi = engine.C, engine.ffi

local RECIPE = "tests/lua/recipes/stored.lua"
local STORED = "tests/fixtures/low_precision/stored.safetensors"
local RECORD = 8464 -- bytes of 16384 elements of nf4

teardown(scratch.clear)

local TINY = { vocab = 41, layers = 2, dim = 128, heads = 4, kv_heads = 2, ffn = 160, seq = 16 }
local TOKENS = ms.tensor { { 3, 1, 40, 7 }, { 2, 0, 5, 9 }, dtype = "i32" }
local BATCH = { tokens = TOKENS, targets = ms.tensor { { 1, 40, 7, 2 }, { 0, 5, 9, 1 }, dtype = "i32" } }
local LINEAR = { { re[[\.w\w\.weight$]], "nf4" } }

local function frozen_vector(n, storage)
  local model = ms.module { w = ms.parameter { n, frozen = true, init = "zeros" },
    forward = function(self, x) return x * self.w end }
  return ms.fully_shard(model, { storage = { { "w", storage } } })
end

local function fixture_values(name)
  local file = ms.safetensors.open(STORED)
  local n = file:tensor(name).elements
  local data = ffi.new("float[?]", n)
  file:read_f32(name, nil, 0, n, data)
  local list = {}
  for i = 1, n do list[i] = data[i - 1] end
  return ms.tensor(list), n, data
end

local function same_bits(expected, got)
  assert.equal(#expected, #got)
  for i, value in ipairs(expected) do assert(value == got[i], ("element %d: %a, not %a"):format(i, got[i], value)) end
end

local function logits(model) return model(TOKENS):reshape(-1):tolist() end

-- A model whose weights are those that another one reads, kept in f32.
local function in_f32(model, make, config)
  local dict, plain = model:state_dict { full = true }, make()
  ms.fully_shard(plain, config)
  plain:load_state_dict(dict, { full = true })
  return plain
end

-- ---- values -----------------------------------------------------------------------------------------------------

describe("a frozen parameter", function()
  it("Q7 in nf4 and i8 reads back as the reference, bit for bit, and in bf16 as the nearest number", function()
    local x, n = fixture_values("x")
    for _, storage in ipairs({ "nf4", "i8", "bf16" }) do
      local model = frozen_vector(n, storage)
      model:set_parameter("w", x)
      local expected = storage == "bf16" and x:cast("bf16"):cast("f32") or fixture_values(storage .. ".back")
      same_bits(expected:tolist(), model:parameter("w"):tolist())
      same_bits(expected:tolist(), model(ms.ones(n)):tolist())
    end
  end)

  it("Q7 is written in pieces of any size, in order", function()
    local _, n, values = fixture_values("x")
    local model = frozen_vector(n, "nf4")
    model(ms.ones(n)) -- makes the state
    local state, at = model.session.state, 0
    for _, piece in ipairs({ 1, 5000, 11383, 2000, n - 18384 }) do
      engine.check(C.ms_state_write(state, 0, C.MS_TENSOR_PARAM, at, piece, values + at))
      at = at + piece
    end
    has(message(function() return model(ms.ones(n)) end), "parameter 'w' was written | call ms_state_finish_writes")
    has(message(function() return model:parameter("w") end), "parameter 'w' was written | call ms_state_finish_writes")
    engine.check(C.ms_state_finish_writes(state))
    same_bits(fixture_values("nf4.back"):tolist(), model:parameter("w"):tolist())
    has(message(function() engine.check(C.ms_state_write(state, 0, C.MS_TENSOR_PARAM, 64, 64, values)) end),
      "stored in nf4, in records of 16384 elements | element 64 is neither")
    engine.check(C.ms_state_write(state, 0, C.MS_TENSOR_PARAM, 0, 16384, values))
    has(message(function() engine.check(C.ms_state_finish_writes(state)) end),
      "'w' is stored in nf4 and was written in part")
  end)

  it("Q7 that holds NaN or infinity reads as NaN, so that a broken file shows", function()
    for _, value in ipairs({ 0 / 0, 1 / 0 }) do
      local list = {}
      for i = 1, 3000 do list[i] = i == 100 and value or 1 end
      local model = frozen_vector(3000, "nf4")
      model:set_parameter("w", ms.tensor(list))
      local read = model:parameter("w"):tolist()
      assert(read[100] ~= read[100])
    end
  end)
end)

-- ---- a model ----------------------------------------------------------------------------------------------------

describe("a model with frozen weights in nf4", function()
  it("Q7 computes the bits of one that has their values in f32, in f32 and in bf16 #release", function()
    for _, dtype in ipairs({ "f32", "bf16" }) do
      for _, storage in ipairs({ "nf4", "i8" }) do
        local function make() return ms.models.llama(TINY) end
        local config = { units = { re[[^layers\.\d+$]] }, freeze = { re"." }, mp_policy = { param_dtype = dtype } }
        local model = make()
        config.storage = storage
        ms.fully_shard(model, config)
        config.storage = nil
        same_bits(logits(in_f32(model, make, config)), logits(model))
      end
    end
  end)

  it("Q7 is read from a Hugging Face folder, quantised while it is read #release", function()
    local folder = scratch.path()
    ms.huggingface.save(ms.models.llama(TINY), folder)
    local stored, plain = ms.huggingface.model(folder), ms.huggingface.model(folder)
    ms.fully_shard(plain, { freeze = { re"." } })
    ms.fully_shard(stored, { freeze = { re"." }, storage = LINEAR })
    same_bits(plain:parameter("embed.weight"):reshape(-1):tolist(),
      stored:parameter("embed.weight"):reshape(-1):tolist())
    local x, y = plain:parameter("layers.1.mlp.w2.weight"), stored:parameter("layers.1.mlp.w2.weight")
    local values, read = x:reshape(-1):tolist(), y:reshape(-1):tolist()
    local most, off, differs = 0, 0, false
    for i, value in ipairs(values) do
      most, off = math.max(most, math.abs(value)), math.max(off, math.abs(value - read[i]))
      differs = differs or value ~= read[i]
    end
    assert(differs and off < 0.16 * most) -- half of the largest distance of two numbers of nf4
    same_bits(logits(in_f32(stored, function() return ms.models.llama(TINY) end, { freeze = { re"." } })),
      logits(stored))
  end)

  it("Q7 trains adapters as on the values in f32, bit for bit (QLoRA)", function()
    local function make() return ms.lora(ms.models.llama(TINY), { { re[[attn\.(wq|wv)$]], { rank = 4 } } }) end
    local function trainer(model)
      return ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy }
    end
    local stored = ms.fully_shard(make(), { units = { re[[^layers\.\d+$]] }, storage = LINEAR })
    local before = stored:parameter("layers.0.attn.wq.weight"):reshape(-1):tolist()
    local a, b = trainer(stored), trainer(in_f32(stored, make, { units = { re[[^layers\.\d+$]] } }))
    for _ = 1, 3 do assert.equal(b:step(BATCH).loss, a:step(BATCH).loss) end
    same_bits(before, stored:parameter("layers.0.attn.wq.weight"):reshape(-1):tolist())
    same_bits(b.model:parameter("layers.1.attn.wv.lora_B"):reshape(-1):tolist(),
      stored:parameter("layers.1.attn.wv.lora_B"):reshape(-1):tolist())
  end)
end)

-- ---- bytes ------------------------------------------------------------------------------------------------------

local runs = {
  bytes = { "plan", RECIPE, "-n", "2", "--json" },
  tensor = { "plan", RECIPE, "-n", "2", "mesh=1x1x2", "ffn=384", "--json" },
  llama = { "plan", "recipes/lora.lua", "-n", "2", "size=8B", "seq=128", "batch=1", "storage=nf4", "stored=",
    "--json" },
  explain = { "explain", RECIPE, "-n", "2" },
  costs = { "explain", RECIPE, "-n", "2", "--json" },
}

describe("the plan of a model with frozen weights in nf4", function()
  local function plan_of(name)
    runs.all = runs.all or program.run_all(runs)
    assert.equal(0, runs.all[name].status, runs.all[name].err)
    return name == "explain" and runs.all[name].out or json.decode(runs.all[name].out)
  end

  it("Q7 gathers codes and scales, exactly, and keeps no master, gradient or moments of them", function()
    local plan, of_unit, reduced = plan_of("bytes"), {}, 0
    for _, instruction in ipairs(plan.phases[1].instructions) do
      if instruction.op == "all_gather" then of_unit[instruction.scope] = instruction.bytes end
      if instruction.op == "reduce_scatter" then reduced = reduced + instruction.bytes end
    end
    -- Records of a rank of two: one of each of four matrices of attention, two of each of three of the MLP. Adapters
    -- and gains are f32: A [4,128] and B [128,4] of wq, A [4,128] and B [64,4] of wv, two of [128].
    local adapters = 4 * (2 * 4 * 128 + 4 * 128 + 64 * 4) / 2
    local unit = (4 * 1 + 3 * 2) * RECORD + adapters + 4 * 2 * 128 / 2
    assert.equal(unit, of_unit["layers.0"])
    assert.equal(unit, of_unit["layers.1"])
    assert.equal(2 * 256 * 128 / 2 + 4 * (256 * 128 + 128) / 2, of_unit.root) -- embed in bf16, head and norm in f32
    assert.equal(2 * adapters, reduced)
    assert.equal(2 * adapters, plan.bytes.gradients)
    assert.equal(2 * 2 * adapters, plan.bytes.optimizer)
    local kept, segments = 2 * unit + of_unit.root, 2 * 13 + 3
    assert(plan.bytes.parameters >= kept and plan.bytes.parameters < kept + 128 * segments)
  end)

  it("Q7 keeps a part of a divided matrix in records that its ranks do not cut, exactly", function()
    -- A layer with two ranks along tensor has wq [64,128], wk and wv [32,128], w1 and w3 [192,128] in whole rows, wo
    -- [128,64] and w2 [128,192] in runs of 64 elements of a row, so in records of one block.
    local function record(elements) return math.ceil((math.ceil(elements / 64 * 33 / 4) * 4 + 8) / 16) * 16 end
    local layer = record(8192) + 2 * record(4096) + 2 * 3 * record(8192) + (128 * 64 + 128 * 192) / 64 * record(64)
    local bytes, others = plan_of("tensor").bytes.parameters, 2 * 128 * 128 + 4 * 128 * 128 + 4 * 128
    -- A layer has wq's A [4,128] and B [64,4], wv's A [4,128] and B [32,4], two gains [128]; all in f32.
    others = others + 2 * 4 * (2 * 4 * 128 + 64 * 4 + 32 * 4 + 2 * 128)
    assert(bytes >= 2 * layer + others and bytes < 2 * layer + others + 128 * (2 * 13 + 3), bytes)
  end)

  it("Q7 keeps Llama 8B on two ranks in about 2.1 GB each #release", function()
    local bytes, elements = plan_of("llama").bytes.parameters, 8030261248
    assert(bytes > elements / 2 * RECORD / 16384 and bytes < 2.1e9, bytes)
  end)

  it("Q7 is explained by rule, with the bytes that each kind is kept in #release", function()
    local text = plan_of("explain")
    has(text, "storage | layers.0.mlp.w1.weight .. layers.1.mlp.w2.weight (6) | nf4 | parameters | stored.lua")
    has(text, "embed.weight | bf16")
  end)

  it("Q7 is explained with the bytes of whole records, which are those of the units #release", function()
    local decided = plan_of("costs").decisions
    local of_params, of_units = 0, 0
    for _, row in ipairs(decided.storage) do of_params = of_params + row.kept_bytes.parameters end
    for _, row in ipairs(decided.units) do of_units = of_units + row.kept_bytes.parameters end
    assert(math.abs(of_units - of_params) < #decided.storage, of_params) -- each is rounded
    for _, row in ipairs(decided.storage) do
      if row.name == "layers.0.attn.wk.weight" then assert(row.kept_bytes.parameters >= RECORD) end
    end
  end)
end)

-- ---- meshes -----------------------------------------------------------------------------------------------------

local KERNELS = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so"):format(
  assert(os.getenv("MOONSHARD_BIN")):match("^(.*)/"))
local cases = {}

local function check(name, ranks, settings, environment)
  cases[name] = { "check", RECIPE, "-n", ranks, unpack(settings) }
  cases[name].environment = environment and program.emulated_cuda(environment)
end

check("shards", "2", { "micro_batches=2", "dtype=bf16" })
check("replicas", "2", { "mesh=2x1" })
check("both", "4", { "mesh=2x2", "layout=ragged", "recompute=true" })
check("neighbours", "4", { "mesh=1x4", "reshard=2", "storage=i8", "dtype=bf16" })
check("copies", "4", { "mesh=2x2", "shared=false", "sliced=true", "dtype=bf16" })
check("averages", "2", { "storage=bf16", "ema=true", "shared=false" })
cases.hosts = { "check", RECIPE, "--hosts", "a:2,b:2", "--agent", "tests/fuzz/agent.sh", "--rendezvous",
  "tcp://127.0.0.1", "mesh=1x4" }
check("cuda", "2", { "device=cuda", "dtype=bf16", "steps=2" }, KERNELS)
check("cuda, i8", "2", { "device=cuda", "storage=i8", "steps=2" }, KERNELS)
check("cuda, bf16", "2", { "device=cuda", "storage=bf16", "mesh=2x1" }, "MOONSHARD_EMULATE_JITTER=50")
check("tensor", "2", { "mesh=1x1x2", "ffn=384" })
check("tensor and shards", "4", { "mesh=1x2x2", "ffn=384", "dtype=bf16", "layout=ragged" })
check("tensor and replicas", "4", { "mesh=2x1x2", "dim=512", "ffn=512", "storage=i8" })
check("tensor, bf16", "4", { "mesh=1x2x2", "storage=bf16", "ema=true" })
check("cuda, tensor", "4", { "device=cuda", "mesh=1x2x2", "ffn=384", "dtype=bf16", "steps=2" }, KERNELS)
check("cuda, tensor, i8", "2", { "device=cuda", "mesh=1x1x2", "dim=512", "ffn=512", "storage=i8", "steps=2" },
  KERNELS)
cases["cut blocks"] = { "plan", RECIPE, "-n", "2", "mesh=1x1x2" }
cases["cut blocks of i8"] = { "plan", RECIPE, "-n", "2", "mesh=1x1x2", "storage=i8" }

local of, equals_one_rank = program.checks(cases)

describe("parameters in few bits on a mesh", function()
  it("Q7 train as on one rank: shards, replicas, layouts, recomputation, groups of neighbours, sliced state", function()
    equals_one_rank("shards", "replicas", "both", "neighbours", "copies", "averages")
  end)

  it("Q7 train as on one rank over two hosts #release", function() equals_one_rank("hosts") end)

  it("Q7 train as on one rank on emulated GPUs, with the kernels of CUDA", function()
    equals_one_rank("cuda", "cuda, i8", "cuda, bf16")
  end)

  it("Q7 train as on one rank where a tensor dimension divides them by rows, by columns and by vocabulary", function()
    equals_one_rank("tensor", "tensor and shards", "tensor and replicas", "tensor, bf16")
  end)

  it("Q7 train as on one rank on emulated GPUs that a tensor dimension divides #all", function()
    equals_one_rank("cuda, tensor", "cuda, tensor, i8")
  end)

  it("Q7 are refused by name where a tensor dimension would cut their blocks #release", function()
    assert.equal(2, of("cut blocks").status, of("cut blocks").out)
    has(of("cut blocks").err, "'layers.0.mlp.w2.weight' | nf4 | 64 | dimension tensor | axis 1 | 168 | bf16")
    has(of("cut blocks of i8").err, "'layers.0.attn.wo.weight' | i8 | 256 | 64 elements | bf16 or nf4")
  end)
end)

-- ---- checkpoints ------------------------------------------------------------------------------------------------

describe("checkpoints of parameters in few bits", function()
  it("Q10 go from any mesh to any other, bit for bit, and are exported as values", function()
    for _, storage in ipairs(breadth.few({ "i8", "nf4" })) do
      local folder, facts, exported = scratch.path(), {}, scratch.path()
      local function run(name, ...)
        facts[name] = scratch.path()
        local ended = program.run { "run", RECIPE, "storage=" .. storage, "facts=" .. facts[name], "steps=4", ... }
        assert.equal(0, ended.status, ended.err)
      end
      run("whole", "-n", "4", "mesh=2x2", "dir=" .. folder)
      local resume = "resume=" .. folder .. "/step-00000002"
      run("one", "-n", "1", resume, "seed=9", "dir=" .. scratch.path())
      run("ragged", "-n", "2", resume, "seed=9", "layout=ragged", "shared=false", "dir=" .. scratch.path())
      local of_whole = scratch.read(facts.whole)
      for _, name in ipairs({ "one", "ragged" }) do
        local text = scratch.read(facts[name])
        for line in text:gmatch("[^\n]+") do
          if not line:find("^loss") then assert(of_whole:find(line, 1, true), name .. ": " .. line) end
        end
      end
      local other = program.run { "run", RECIPE, resume, "storage=f32", "dir=" .. scratch.path() }
      assert.equal(2, other.status)
      has(other.err, "layers.0.attn.wq.weight in " .. storage .. " | kept in f32")
      has(program.run({ "inspect", folder .. "/step-00000004" }).out, "layers.0.attn.wq.weight | frozen, " .. storage)
      local ended = program.run { "export", folder .. "/step-00000004", exported }
      assert.equal(0, ended.status, ended.err)
      local file, sum = ms.safetensors.open(exported), 0
      local n = file:tensor("layers.1.mlp.w2.weight").elements
      local data = ffi.new("float[?]", n)
      file:read_f32("layers.1.mlp.w2.weight", nil, 0, n, data)
      for i = 0, n - 1 do sum = sum + data[i] end
      has(of_whole, ("layers.1.mlp.w2.weight %a"):format(sum))
    end
  end)
end)

describe("checkpoints of parameters in few bits that a tensor dimension divides", function()
  local function facts_of(storage, ...)
    local facts = scratch.path()
    local ended = program.run { "run", RECIPE, "storage=" .. storage, "facts=" .. facts, ... }
    assert.equal(0, ended.status, ended.err)
    return (scratch.read(facts):gsub("loss[^\n]*\n", ""))
  end

  it("Q10 have the numbers of one rank, bit for bit, and go to any other mesh, or become whole #release", function()
    for _, kept in ipairs(breadth.few { { "i8", "dim=1024", "ffn=1024" }, { "nf4", "dim=256", "ffn=512" } }) do
      local storage, size = kept[1], { unpack(kept, 2) }
      local folder, exported = scratch.path(), { scratch.path(), scratch.path() }
      local alone, divided = folder .. "/alone", folder .. "/divided"
      local values = facts_of(storage, "-n", "1", "steps=2", "dir=" .. alone, unpack(size))
      assert.equal(values, facts_of(storage, "-n", "4", "mesh=1x2x2", "steps=2", "dir=" .. divided, unpack(size)))
      assert.equal(values, facts_of(storage, "-n", "4", "mesh=1x2x2", "steps=2", "whole=2", unpack(size)))
      local moves = { { alone, "4", "1x2x2" }, { divided, "1", "1x1x1" }, { divided, "2", "1x1x2" },
        { divided, "4", "1x1x4" }, { divided, "4", "2x1x2" } }
      for i, case in ipairs(breadth.all and moves or { moves[1], moves[5] }) do
        assert.equal(values, facts_of(storage, "-n", case[2], "mesh=" .. case[3], "steps=4", "seed=9",
          "resume=" .. case[1] .. "/step-00000002", "dir=" .. folder .. "/resumed-" .. i, unpack(size)), case[3])
      end
      for i, from in ipairs { alone, divided } do
        local ended = program.run { "export", from .. "/step-00000002", exported[i] }
        assert.equal(0, ended.status, ended.err)
      end
      local one, other = ms.safetensors.open(exported[1]), ms.safetensors.open(exported[2])
      for _, name in ipairs { "layers.0.mlp.w2.weight", "layers.1.attn.wq.weight" } do
        local n = one:tensor(name).elements
        local a, b = ffi.new("float[?]", n), ffi.new("float[?]", n)
        one:read_f32(name, nil, 0, n, a)
        other:read_f32(name, nil, 0, n, b)
        for i = 0, n - 1 do assert(a[i] == b[i], name) end
      end
    end
  end)
end)

-- ---- mistakes ---------------------------------------------------------------------------------------------------

describe("storage", function()
  local function refused(config, make)
    return message(ms.fully_shard, make and make() or ms.models.llama(TINY), config)
  end

  it("Q7 refuses what it cannot do by name #release", function()
    has(refused { storage = "nf4" }, "all parameters train: freeze some")
    has(refused { freeze = { re"." }, storage = "int4" }, 'must be "f32", "bf16", "i8" or "nf4"')
    has(refused { freeze = { "embed" }, storage = { { "head", "nf4" } } },
      "storage | rule head | head.weight | trains | freeze")
    has(refused { freeze = { "embed" }, storage = { { "hed", "nf4" } } }, "storage | \"hed\" matches none of 1 name")
    local model = ms.lora(ms.models.llama(TINY), { { re"wq", {} } })
    ms.fully_shard(model, { storage = LINEAR })
    has(message(ms.lora.merge, model), "layers.0.attn.wq.weight is kept in nf4 | ms.lora.save")
  end)

  it("Q7 leaves matrices in f32 whose records would be larger #release", function()
    local model = ms.module { a = ms.parameter { 16, 16, frozen = true }, b = ms.parameter { 64, 64, frozen = true },
      forward = function(self, x) return x:matmul(self.a) end }
    ms.fully_shard(model, { storage = "nf4" })
    assert.equal("frozen f32", model.sharding:marks()[model.a])
    assert.equal("frozen f32 kept in nf4", model.sharding:marks()[model.b])
    assert.same({}, model.sharding.warnings)
  end)

  it("Q7 keeps parameters in f32 where that is given as the one value for all #release", function()
    local model = ms.module { a = ms.parameter { 64, 64, frozen = true }, forward = function(self, x) return x end }
    ms.fully_shard(model, { storage = "f32" })
    assert.equal("frozen f32", model.sharding:marks()[model.a])
    assert.equal("f32", model.sharding.decisions.storage.a.value)
  end)

  it("Q7 by rules keeps small parameters in larger records, and warns once #release", function()
    local path = program.recipe([[
      local ms = require "moonshard"
      local re = ms.re
      local model = ms.module { gain = ms.parameter { 64, frozen = true }, bias = ms.parameter { 64, frozen = true },
        w = ms.parameter { 128, 128, frozen = true }, forward = function(self, x) return x:matmul(self.w) end }
      ms.fully_shard(model, { storage = { { re"gain|bias|w", "i8" } } })
    ]])
    local ended = program.run { "run", path, "-n", "2" }
    os.remove(path)
    assert.equal(0, ended.status, ended.err)
    message_of.line_has(ended.err, "moonshard: warning | :5: | storage | /gain|bias|w/ | bias and 1 more | i8 | 1040 "
      .. "bytes | 256 of f32")
  end)

  it("Q7 takes one value for all matrices that do not train, and PyTorch's names #release", function()
    local model = ms.lora(ms.models.llama(TINY), { { re"wq", {} } })
    ms.fully_shard(model, { storage = "int8" })
    local marks = model.sharding:marks()
    assert.equal("frozen f32 kept in i8", marks[model.embed.weight])
    assert.equal("frozen f32", marks[model.norm.weight])
    assert.equal("f32", marks[model.layers[1].attn.wq.lora_A])
  end)
end)
