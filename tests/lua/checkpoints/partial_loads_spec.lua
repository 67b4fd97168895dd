-- What cannot be loaded in part, or unfrozen, says so and what to do; and what it says works.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local folder = scratch.folder()

-- One layer; with two=true there is a second.
local MODEL = [[
local ms = require "moonshard"
local cfg = ms.args { mesh = "1x1", two = false, out = "", from = "", what = "", file = "", seed = "0" }
local Net = ms.module "Net"
function Net:init()
  self.a = ms.nn.linear(2, 4)
  if cfg.two then self.b = ms.nn.linear(4, 4) end
end
function Net:forward(x) return cfg.two and self.b(self.a(x)) or self.a(x) end
local model = Net()
ms.fully_shard(model, { mesh = cfg.mesh })
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.1 }, loss = ms.loss.mse }
train:step { inputs = ms.ones(2, 2), targets = ms.ones(2, 4) }
if cfg.out ~= "" then
  ms.checkpoint.save(train, cfg.out)
  local first = model:parameter("a.weight"):reshape(-1):tolist()[1]
  if ms.world().rank == 0 then print(("first %.9g"):format(first)) end
end
if cfg.from ~= "" then ms.checkpoint.load(model, cfg.from) end
if cfg.what == "rules" then train:set_rules { freeze = { "a" } } end
if cfg.what == "dict" then
  local dict = model:state_dict()
  dict["b.weight"], dict["c.weight"] = nil, ms.ones(1)
  model:load_state_dict(dict)
end
if cfg.what == "strict" then model:load_state_dict(model:state_dict(), { strict = false }) end
if cfg.file ~= "" then
  local file = ms.safetensors.open(cfg.file)
  for _, t in ipairs(file.tensors) do
    local x = ms.zeros(t.shape)
    file:read(t.name, 0, t.bytes, x.data)
    model:set_parameter(t.name, x)
  end
  local first = model:parameter("a.weight"):reshape(-1):tolist()[1]
  if ms.world().rank == 0 then print(("first %.9g"):format(first)) end
end
]]

describe("a part of a model", function()
  local recipe = folder .. "/model.lua"

  setup(function() scratch.write(recipe, MODEL) end)
  teardown(scratch.clear)

  local function refused(facts, ...)
    local ended = program.run({ "run", recipe, "two=true", ... })
    assert.not_equal(0, ended.status)
    has(ended.err, facts)
  end

  it("is refused in place of a whole state, with what to do", function()
    refused("load_state_dict | b.weight is missing | no c.weight | model:set_parameter", "what=dict")
    refused("strict | model:set_parameter", "what=strict")
    refused("ms.set_rules | freeze | ms.trainer | another trainer", "what=rules")
  end)

  it("K4 is loaded from an exported checkpoint, tensor by tensor", function()
    local checkpoint, exported = folder .. "/checkpoint", folder .. "/exported"
    local saved = program.run({ "run", recipe, "-n", "2", "mesh=1x2", "out=" .. checkpoint })
    assert.equal(0, saved.status, saved.err)
    refused("checkpoint | b.weight | moonshard export | model:set_parameter", "from=" .. checkpoint)
    assert.equal(0, program.run({ "export", checkpoint, exported }).status)
    local loaded = program.run({ "run", recipe, "-n", "2", "mesh=2x1", "two=true",
      "file=" .. exported .. "/model.safetensors" })
    assert.equal(0, loaded.status, loaded.err)
    assert.equal(saved.out:match("first %S+"), loaded.out:match("first %S+"))
  end)

  it("K4 leaves out the optimizer's state of what is frozen now, keeps the saved seed, and says so", function()
    local frozen, root = folder .. "/frozen.lua", folder .. "/root"
    scratch.write(frozen, MODEL:gsub("ms.fully_shard.*", [[
      ms.fully_shard(model, { mesh = cfg.mesh, freeze = cfg.what ~= "" and { cfg.what } or nil })
      local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.1 }, loss = ms.loss.mse,
        seed = tonumber(cfg.seed),
        checkpoint = { dir = cfg.out, every = 1, resume = "auto" } }
      train:step { inputs = ms.ones(2, 2), targets = ms.ones(2, 4) }
    ]]))
    local function resumed(what, ...)
      os.execute("rm -rf " .. root)
      assert.equal(0, program.run({ "run", frozen, "two=true", "out=" .. root }).status)
      local ended = program.run({ "run", frozen, "two=true", "out=" .. root, "what=" .. what, ... })
      assert.equal(0, ended.status, ended.err)
      return ended.out:match("resumed from [^\n]*")
    end
    has(resumed("a"), "after step 1; | a.weight and 1 more | frozen")
    has(resumed("b.bias"), "after step 1; | b.bias is | frozen")
    assert.truthy(resumed(""):find("after step 1$"))
    has(resumed("", "seed=7"), "after step 1; | its seed 0 | 7")
  end)
end)
