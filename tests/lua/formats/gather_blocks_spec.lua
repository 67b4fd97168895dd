-- Weights that shards gather in blocks of 8 bits (gather_dtype = "i8"): real ranks train
-- tests/lua/formats/recipes/quantised_sums.lua.

local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local ms = require("moonshard")
local program = require("lua.support.program")
local runs = require("lua.formats.quantised_runs")
local measured, message, parameters, re = runs.measured, fixture.message, runs.parameters, ms.re

local DIM = 36
local BLOCK, BLOCK_BYTES = 256, 260

local function greatest_divisor(a, b) return b == 0 and a or greatest_divisor(b, a % b) end

-- Elements of the chunks into which so many shards cut a parameter in the layout `rows`: blocks are whole, or a chunk
-- has all rows.
local function chunk_of(shape, shards)
  local row = shape[2] or 1
  local multiple = BLOCK / greatest_divisor(row, BLOCK)
  local rows = math.ceil(math.ceil(shape[1] / shards) / multiple) * multiple
  return math.min(rows, shape[1]) * row
end

describe("weights that are gathered in blocks of 8 bits", function()
  -- A gradient's sum over ranks has an order, so the first update shows what forward and backward have read.
  it("Q3 have the same codes on every mesh: the first loss, from one shard to four, and any layout", function()
    local function first_loss(ranks, ...)
      local read = measured(ranks, "steps=1", "replicate=", "micro=1", ...)
      return ("%.6f"):format(read.losses[1])
    end
    local words = breadth.few { { "gather=all" }, { "gather=all", "layout=ragged" }, { "gather=i8", "dtype=bf16" } }
    for _, each in ipairs(words) do
      local one = first_loss(4, "mesh=4x1", unpack(each))
      for _, mesh in ipairs({ "1x4", "2x2" }) do assert.equal(one, first_loss(4, "mesh=" .. mesh, unpack(each))) end
    end
    assert.not_equal(first_loss(4, "mesh=1x4"), first_loss(4, "mesh=1x4", "gather=all"))
  end)

  it("Q3 give the same bits in groups of neighbours, with sliced state, on threads and over hosts", function()
    local words = { "mesh=1x4", "replicate=", "gather=all", "clip=0" }
    local plain = parameters(4, unpack(words))
    assert.equal(plain, parameters(4, "reshard=2", unpack(words)))
    assert.equal(plain, parameters(4, "shared=false", unpack(words)))
    assert.equal(plain, (runs.trained("MOONSHARD_STREAMS=threads", 4, unpack(words)):match("parameters %S+")))
    words[#words + 1] = "shard=i8" -- whose sums have one order, also over hosts of 1 and 3, which sum in one hop
    assert.equal(parameters(4, unpack(words)), parameters("a:1,b:3", unpack(words)))
    local copies = { "mesh=2x2", "replicate=", "gather=all", "clip=0", "shared=false" }
    assert.equal(parameters(4, unpack(copies)), parameters(4, "sliced=true", unpack(copies)))
  end)

  it("Q2 travel in one gather with the rest of their unit, in the bytes of codes and scales", function()
    for shards = 2, 3 do
      for _, which in ipairs(breadth.all and { "i8", "all" } or { shards == 2 and "i8" or "all" }) do
        local difference = 0
        for i, shape in ipairs(runs.shapes(DIM)) do
          if which == "all" or shape[2] then
            local plain = math.ceil(shape[1] / shards) * (shape[2] or 1)
            local chunk = chunk_of(shape, shards)
            -- Backward gathers the first layer again; gradients are reduced in chunks of whole blocks.
            local gathers = i > 5 and i <= 21 and 2 or 1
            difference = difference + (shards - 1)
              * (gathers * (math.ceil(chunk / BLOCK) * BLOCK_BYTES - 4 * plain) + 4 * (chunk - plain))
          end
        end
        local words = { "mesh=1x" .. shards, "replicate=", "steps=1", "shared=false" }
        local plain, sent = measured(shards, unpack(words)), measured(shards, "gather=" .. which, unpack(words))
        assert.equal(plain.bytes.shard + difference, sent.bytes.shard)
        assert.equal(sent.plan.shard, sent.bytes.shard)
        local hosts = shards == 2 and "a:1,b:1" or "a:1,b:1,c:1"
        local apart = measured(hosts, "gather=" .. which, unpack(words))
        assert.equal(sent.bytes.shard, apart.bytes.shard)
        assert.equal(measured(hosts, unpack(words)).wire.shard + difference, apart.wire.shard)
      end
    end
    local ended = program.run({ "plan", runs.RECIPE, "-n", "2", "mesh=1x2", "replicate=", "gather=i8" })
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "quantise_pieces | all_gather over shard | restore_pieces")
  end)

  it("Q2 go in one gather with codes of f8e4m3, bf16, f32, and stored weights in i8 and nf4", function()
    local recipe = "tests/lua/formats/recipes/float8_gather.lua"
    local ended = program.run({ "plan", recipe, "-n", "2", "mesh=1x2", "blocks=true" })
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "segments of f32, i32, f8e4m3")
    local all = {}
    for _, mesh in ipairs({ "4x1", "1x4", "2x2" }) do
      all[mesh] = { "run", recipe, "-n", "4", "mesh=" .. mesh, "blocks=true", "steps=1" }
    end
    for _, mesh in ipairs(breadth.few({ "4x1", "1x4", "2x2" })) do
      local cuda = { "run", recipe, "-n", "4", "--device", "cuda", "mesh=" .. mesh, "blocks=true", "steps=1" }
      cuda.environment = program.emulated_cuda()
      all[mesh .. " on cuda"] = cuda
    end
    local losses = {}
    for name, run in pairs(program.run_all(all)) do
      assert.equal(0, run.status, run.err)
      losses[name] = run.out:match("loss (%S+)")
    end
    for name, loss in pairs(losses) do assert.equal(losses["1x4"], loss, name) end
  end)

  it("Q3 train as f32 weights do for 50 steps, within 2 % of the first loss", function()
    local f32 = measured(4, "mesh=1x4", "replicate=", "steps=50").losses
    local i8 = measured(4, "mesh=1x4", "replicate=", "gather=all", "steps=50").losses
    for step = 1, 50 do
      assert.is_true(math.abs(i8[step] - f32[step]) <= 0.02 * f32[1],
        ("step %d: %g, not %g"):format(step, i8[step], f32[step]))
    end
  end)

  it("Q3 train as one rank does: moonshard check", function()
    local _, equals_one_rank = program.checks {
      rows = { "check", runs.RECIPE, "-n", "4", "mesh=2x2", "replicate=", "gather=all" },
      ragged = { "check", runs.RECIPE, "-n", "3", "mesh=1x3", "replicate=", "gather=i8", "layout=ragged" },
    }
    equals_one_rank("rows", "ragged")
  end)
end)

describe("gather_dtype", function()
  local function shard(options)
    options.mesh = ms.init_device_mesh("cpu", { 1 }, { "shard" })
    local model = ms.nn.sequential { ms.nn.linear(64, 64), ms.nn.layer_norm(64) }
    return ms.fully_shard(model, options).sharding
  end

  local function gathered(options)
    local names = {}
    for _, param in ipairs(shard(options).params) do
      if param.gather then names[#names + 1] = param.fqn end
    end
    return table.concat(names, " ")
  end

  it("Q5 is a rule like any other: alone it is that of matrices", function()
    assert.equal("0.weight", gathered { gather_dtype = "int8" })
    assert.equal("0.weight 1.weight", gathered { gather_dtype = { { re[[\.weight$]], "i8" } } })
    assert.equal("1.weight", gathered { gather_dtype = { { "0.weight", false }, { re[[\.weight$]], "i8" } } })
    assert.equal("", gathered { gather_dtype = "i8", fp8 = { { "0.weight", "tensorwise" } } })
    assert.equal("", gathered { gather_dtype = "i8", freeze = { "0" }, storage = "nf4" })
    local ended = program.run({ "explain", runs.RECIPE, "-n", "4", "gather=i8", "shard=i8", "feedback=true" })
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "over shard i8, over replicate i8 with error feedback | gather_dtype | i8 | default: f32")
  end)

  it("Q5 is explained with the type in which a parameter without it is gathered", function()
    local storage = require("moonshard.shard.policies.storage")
    local function text(options) return storage.gathered_text(shard(options).params[1]) end
    assert.equal("default: bf16", text { mp_policy = { param_dtype = "bf16" } })
    assert.equal("as stored: nf4", text { freeze = { "0" }, storage = "nf4" })
    assert.equal("by fp8: f8e4m3", text { fp8 = { { "0.weight", "tensorwise" } } })
  end)

  it("Q5 says what cannot be gathered so", function()
    local function refuses(options, expected) has(message(shard, options), expected) end
    refuses({ gather_dtype = "i4" }, 'gather_dtype | "i8" or false | not "i4"')
    refuses({ gather_dtype = { { "0.weight", "i8" } }, fp8 = { { "0.weight", "tensorwise" } } },
      'gather_dtype: 0.weight | rule 0.weight | fp8 tensorwise | f8e4m3 | false')
    refuses({ gather_dtype = { { "0.weight", "i8" } }, freeze = { "0" }, storage = "nf4" },
      'gather_dtype: 0.weight | rule 0.weight | nf4 | false')
  end)
end)
