-- The value "auto" of policies in recipes: who decides it, when, and for which machine.

local decode = require("moonshard.base.json").decode
local has = require("lua.message").has
local launched = require("lua.launched")
local program = require("lua.program")
local scratch = require("lua.scratch")

local HEAD = [==[
local ms = require "moonshard"
local cfg = ms.args { budget = "", eval = false, checkpoint = "", resume = "", steps = 3, set = false, cluster = true,
  fixed = false, memory = "4GiB" }
local model = ms.models.gpt2 { vocab = 256, layers = 4, dim = 32, heads = 4, seq = 16 }
local auto = { units = "auto", reshard_after_forward = "auto", prefetch = "auto",
  recompute = cfg.budget ~= "" and { budget = cfg.budget } or "auto",
  cluster = cfg.cluster and "cpu-example" or nil, memory = cfg.memory }
ms.fully_shard(model, cfg.fixed and { units = { ms.re[[^layers\.\d+$]] } } or auto)
local data = ms.data.text { files = "recipes", seq = 16, batch = 2 }
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.01 }, loss = ms.loss.cross_entropy,
  checkpoint = { dir = cfg.checkpoint, every = 2, resume = cfg.resume, data = data } }
if cfg.set then ms.set_rules(model, { prefetch = 2 }) end
]==]

local REST = [==[
if cfg.eval then print(("before %.6f"):format(train:evaluate(data:batches(1)))) end
for step, batch in data:batches(cfg.steps) do print(("%d %.5f"):format(step, train:step(batch).loss)) end
print(("after %.5f"):format(train:evaluate(data:batches(1))))
]==]

local function run(path, ...)
  local ended = program.run({ "run", path, "-n", "2", ... })
  assert.equal(0, ended.status, ended.err)
  return ended
end

local function explained(path, ...)
  local ended = program.run({ "explain", path, "-n", "2", "--json", ... })
  assert.equal(0, ended.status, ended.err)
  return decode(ended.out)
end

local POLICIES = { "units", "reshard_after_forward", "prefetch", "recompute" }

describe("\"auto\" in a recipe", function()
  teardown(scratch.clear)

  it("E7 trains as the same recipe with rules does", function()
    launched.with_recipe(HEAD .. REST, function(path)
      local auto = run(path, "eval=true")
      assert.equal(run(path, "eval=true", "fixed=true").out, auto.out)
      has(auto.err, "auto | units, reshard_after_forward, prefetch, recompute | cpu-example | explain")
    end)
    launched.with_recipe(HEAD .. REST, function(path)
      local ended = program.run({ "check", path, "-n", "2" })
      assert.equal(0, ended.status, ended.err .. ended.out)
    end)
  end)

  it("E7 is decided equally by all ranks, and explained as rules", function()
    launched.with_recipe(HEAD .. REST, function(path)
      local first, second = explained(path), explained(path, "--rank", "1")
      for _, policy in ipairs(POLICIES) do
        for i, row in ipairs(first.decisions[policy]) do
          local other = second.decisions[policy][i]
          assert.same({ row.name, row.value, row.rule }, { other.name, other.value, other.rule })
          local is_rest = policy == "units" and row.name == "root"
          assert.is_true(is_rest or row.rule.where:find("\"auto\" for cpu-example", 1, true) ~= nil, policy)
        end
      end
    end)
  end)

  it("E7 keeps to memory, to a budget, and to the trainer's limit", function()
    launched.with_recipe(HEAD .. REST, function(path)
      local free = explained(path).peak_bytes
      for _, limit in ipairs({ math.floor(0.97 * free), math.floor(0.93 * free) }) do
        for _, name in ipairs({ "budget", "memory" }) do
          assert.is_true(explained(path, ("%s=%d"):format(name, limit)).peak_bytes <= limit)
        end
      end
      program.refused(3, { "plan", path, "-n", "2", "budget=1000" }, "1000 B | smallest | optimizer")
    end)
  end)

  it("moves the state of a model that was used or resumed before", function()
    local folder = scratch.folder()
    launched.with_recipe(HEAD .. REST, function(path)
      local whole = run(path, "fixed=true", "steps=4").out
      run(path, "steps=2", "checkpoint=" .. folder)
      local resumed = run(path, "steps=4", "checkpoint=" .. folder, "resume=auto").out
      assert.equal(whole:match("3 .*$"), resumed:match("3 [%d.]+\n.*$"))
    end)
  end)

  it("needs a description, of this kind of device, which the command line can give", function()
    launched.with_recipe(HEAD .. REST, function(path)
      program.refused(2, { "plan", path, "-n", "2", "cluster=false" }, "auto | units | cluster | calibrate | --cluster")
      local ended = program.run({ "plan", path, "-n", "2", "--cluster", "cpu-example", "cluster=false", "--summary" })
      assert.equal(0, ended.status, ended.err)
      local priced = program.run({ "price", path, "-n", "2", "--cluster", "cpu-example", "cluster=false", "--json" })
      assert.equal(0, priced.status, priced.err)
      assert.equal(ended.out:match("fingerprint (%x+)"), decode(priced.out).fingerprint)
      program.refused(2, { "plan", path, "-n", "2", "--device", "cuda" }, "auto | cpu-example | cuda")
    end)
  end)

  it("cannot be changed before it is decided, and names what is wrong with its options", function()
    launched.with_recipe(HEAD .. REST, function(path)
      program.refused(2, { "plan", path, "-n", "2", "set=true" }, "set_rules | auto | first")
      program.refused(2, { "plan", path, "-n", "2", "budget=much" }, "budget | much | 60GiB")
      program.refused(2, { "plan", path, "-n", "2", "memory=much" }, "memory | much | 60GiB")
    end)
  end)

  it("E7 is left to moonshard tune, which prints every rule of it", function()
    launched.with_recipe(HEAD .. REST, function(path)
      local ended = program.run({ "tune", path, "-n", "2", "--cluster", "cpu-example", "--json" })
      assert.equal(0, ended.status, ended.err)
      local found = decode(ended.out)
      for _, policy in ipairs(POLICIES) do
        assert.is_truthy(("\n" .. found.rules.options):find("\n" .. policy .. " = ", 1, true), policy)
      end
    end)
  end)
end)
