-- A run that resumes under a model that computes something else: options of models are kept in checkpoints, and those
-- that give weights another meaning are refused, while of those that people change the log says so.

local has = require("lua.support.message").has
local manifest = require("moonshard.checkpoint.manifest")
local message = require("lua.support.fixture").message
local model_options = require("moonshard.checkpoint.model_options")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local text = scratch.path()
scratch.write(text, ("words that are trained on "):rep(40))

-- Options of models as Lua texts, of which the last call of a recipe has others than the first.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { make = "", steps = 1, dir = "", resume = "", storage = "f32", freeze = false }
local make = assert(load("return function(ms) return " .. cfg.make .. " end"))()
local model = make(ms)
ms.fully_shard(model, { mesh = ms.world().size, freeze = cfg.freeze and { ms.re"mlp" } or nil,
  storage = cfg.storage ~= "f32" and cfg.storage or nil })
local data = ms.data.text { files = "TEXT", seq = 8, batch = 2 }
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.01 },
  forward = function(net, b) return ms.loss.cross_entropy((net.policy or net)(b.tokens), b.targets) end,
  checkpoint = { dir = cfg.dir, resume = cfg.resume, data = data } }
for step, batch in data:batches(cfg.steps) do print(("loss %.9g"):format(train:step(batch).loss)) end
]]
local recipe = program.recipe((RECIPE:gsub("TEXT", text)))

local LLAMA = "ms.models.llama { vocab = 256, layers = 2, dim = 16, heads = 4, kv_heads = 2, ffn = 32, seq = 8%s }"
local GPT2 = "ms.models.gpt2 { vocab = 256, layers = 1, dim = 16, heads = 2, seq = 8%s }"
local MIXTRAL = "ms.models.mixtral { vocab = 256, layers = 1, dim = 16, heads = 2, kv_heads = 2, ffn = 16, seq = 8, "
  .. "experts = 4%s }"
local PAIR = "ms.module { policy = " .. LLAMA .. ", forward = function(self, x) return self.policy(x) end }"

local function run(make, dir, ...)
  return program.run { "run", recipe, "make=" .. make, "dir=" .. dir, ... }
end

-- What the second run of a model says, whose checkpoint the first has made.
local function resumed(dir, make, ...)
  local copy = scratch.path()
  os.execute(("cp -r '%s' '%s'"):format(dir, copy))
  local ended = run(make, copy, "steps=2", "resume=auto", ...)
  return ended.out .. ended.err, ended.status, copy
end

local function saved(make, ...)
  local dir = scratch.path()
  local ended = run(make, dir, ...)
  assert.equal(0, ended.status, ended.err)
  return dir
end

describe("a checkpoint", function()
  local llama

  setup(function() llama = saved(LLAMA:format("")) end)

  it("K1 tells at the resume which options of the model have another value, in one line", function()
    for option, says in pairs({
      ["rope_theta = 100"] = "rope_theta was 10000 in the checkpoint, and is 100 here",
      ["eps = 0.1"] = "eps was 1e-05 | 0.1", ["window = 4"] = "window was none | 4",
      ["embedding_scale = 4"] = "embedding_scale was none | 4", ["logit_softcap = 5"] = "logit_softcap was none | 5",
      ["attention_scale = 2"] = "attention_scale | 2", ["document_start = 3"] = "document_start | 3",
      ['rope_scaling = { type = "linear", factor = 2 }'] = 'rope_scaling was false | "factor":2',
    }) do
      local said, status = resumed(llama, LLAMA:format(", " .. option))
      assert.equal(0, status, said)
      has(said:match("[^\n]*"), "checkpoint | step-00000001: | " .. says)
    end
    local said = resumed(llama, LLAMA:format(", eps = 0.1, rope_theta = 100"))
    has(said:match("[^\n]*"), "eps was 1e-05 | ; rope_theta was 10000")
    said = resumed(llama, LLAMA:format(", rotates = { true, true }, tied = false"), "-n", "2")
    has(said:match("[^\n]*"), "resumed from")
    has(resumed(saved(PAIR:format("")), PAIR:format(", rope_theta = 100")), "policy.rope_theta was 10000")
    has(resumed(saved(GPT2:format("")), GPT2:format(", eps = 0.1, dropout = 0.5")), "dropout was 0 | eps was 1e-05")
    has(resumed(saved(MIXTRAL:format("")), MIXTRAL:format(", aux_loss = 0.5")), "aux_loss was 0")
    local published = 'ms.models.gpt2 { "124M", vocab = 256, layers = 1, dim = 16, heads = 2, seq = 8%s }'
    has(resumed(saved(published:format("")), published:format(", eps = 0.1")), "eps was 1e-05")
  end)

  it("K1 is refused by a model to which its weights mean something else", function()
    local function refused(dir, make, says)
      local said, status = resumed(dir, make)
      assert.equal(2, status, said)
      has(said, "checkpoint | step-00000001 | different | " .. says)
    end
    refused(llama, LLAMA:format(", norm_from_one = true"), "norm_from_one=false, here true")
    refused(llama, LLAMA:format(', activation = "gelu"'), "activation=silu, here gelu")
    refused(llama, LLAMA:gsub("heads = 4, kv_heads = 2", "heads = 8, kv_heads = 4"):format(""), "heads=4, here 8")
    refused(llama, LLAMA:format(", rotates = { true, false }"), "rotates=none, here [true,false]")
    local mixtral = saved(MIXTRAL:format(""))
    refused(mixtral, MIXTRAL:format(', expert_score = "sigmoid"'), "expert_score=softmax, here sigmoid")
    refused(mixtral, MIXTRAL:format(", experts_per_token = 1"), "experts_per_token=2, here 1")
    refused(saved(PAIR:format("")), PAIR:format(", norm_from_one = true"), "policy.norm_from_one=false")
  end)

  it("K1 of an older version, without options and storage, is compared by what it has", function()
    local model = ms.models.llama { vocab = 256, layers = 1, dim = 16, heads = 2, ffn = 32, seq = 8 }
    assert.is_nil(model_options.check("old", nil, model))
    local frozen, trained = { fqn = "a", storage = "bf16" }, { fqn = "b", storage = "bf16" }
    local read = { parameters = { { name = "a", frozen = true }, { name = "b", frozen = false } } }
    assert.is_nil(manifest.check_storage(read, "old", { frozen }))
    has(message(manifest.check_storage, read, "old", { frozen, trained }), "old has b in f32 | bf16 | storage")
  end)

  it("Q7 in f32 is refused by parameters that are kept in bf16, which would round it; not so the other way", function()
    local dir = saved(LLAMA:format(""), "freeze=true")
    local said, status = resumed(dir, LLAMA:format(""), "freeze=true", "storage=bf16")
    assert.equal(2, status)
    has(said, "step-00000001 has layers.0.mlp.w1.weight in f32 | bf16 | storage")
    local short, exact = saved(LLAMA:format(""), "freeze=true", "storage=bf16"), {}
    for _, storage in ipairs({ "bf16", "f32" }) do
      said, status = resumed(short, LLAMA:format(""), "freeze=true", "storage=" .. storage)
      assert.equal(0, status, said)
      exact[#exact + 1] = said:match("loss (%S+)")
    end
    assert.equal(exact[1], exact[2])
  end)
end)
