-- The value "auto" of policies in recipes: who decides it, when, and for which machine.

local decode = require("moonshard.base.text.json").decode
local has = require("lua.support.message").has
local launched = require("lua.support.launched")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local HEAD = [==[
local ms = require "moonshard"
local cfg = ms.args { budget = "", eval = false, checkpoint = "", resume = "", steps = 3, set = false, cluster = true,
  fixed = false, memory = "4GiB", mesh = "1x2", own_copies = false, slices = "",
  sync = 1, after = true }
local model = ms.models.gpt2 { vocab = 256, layers = 4, dim = 32, heads = 4, seq = 16 }
local auto = { units = "auto", reshard_after_forward = "auto", prefetch = "auto",
  recompute = cfg.budget ~= "" and { budget = cfg.budget } or "auto", shard_optimizer_over_replicate = "auto" }
if cfg.slices ~= "" then
  auto = { shard_optimizer_over_replicate = cfg.slices == "auto" and "auto" or cfg.slices == "true" }
end
local options = cfg.fixed and { units = { ms.re[[^layers\.\d+$]] } } or auto
options.mesh, options.shared_masters = cfg.mesh, not cfg.own_copies
if cfg.sync > 1 then options.replicate_sync = { every = cfg.sync, outer = ms.optim.sgd { lr = 0.7 } } end
if not cfg.fixed then options.cluster, options.memory = cfg.cluster and "cpu-example" or nil, cfg.memory end
ms.fully_shard(model, options)
local data = ms.data.text { files = "recipes", seq = 16, batch = 2 }
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.01 }, loss = ms.loss.cross_entropy,
  checkpoint = { dir = cfg.checkpoint, every = 2, resume = cfg.resume, data = data } }
if cfg.set then ms.set_rules(model, { prefetch = 2 }) end
]==]

local REST = [==[
if cfg.eval then print(("before %.6f"):format(train:evaluate(data:batches(1)))) end
for step, batch in data:batches(cfg.steps) do print(("%d %.5f"):format(step, train:step(batch).loss)) end
if cfg.after then print(("after %.5f"):format(train:evaluate(data:batches(1)))) end
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

local POLICIES = { "units", "reshard_after_forward", "prefetch", "recompute", "shard_optimizer_over_replicate" }

describe("\"auto\" in a recipe", function()
  teardown(scratch.clear)

  it("E7 trains as the same recipe with rules does", function()
    launched.with_recipe(HEAD .. REST, function(path)
      local auto = run(path, "eval=true")
      assert.equal(run(path, "eval=true", "fixed=true").out, auto.out)
      has(auto.err, "auto | units, reshard_after_forward, prefetch, recompute, shard_optimizer | cpu-example | explain")
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

  it("E7 shards the optimizer over replicas, with other policies or alone, on all ranks", function()
    launched.with_recipe(HEAD .. REST, function(path)
      local replicas = { "mesh=2x1", "own_copies=true" }
      local without = run(path, "fixed=true", "eval=true", unpack(replicas))
      local function plan_of(slices)
        local ended = program.run({ "plan", path, "-n", "2", "--summary", "slices=" .. slices, unpack(replicas) })
        assert.equal(0, ended.status, ended.err)
        return ended.out:match("fingerprint (%x+)")
      end
      assert.equal(plan_of("true"), plan_of("auto"))
      assert.are_not.equal(plan_of("false"), plan_of("auto"))
      for _, slices in ipairs({ "", "auto" }) do
        -- The model was used before: its state is there, and is divided again.
        local ended = run(path, "eval=true", "slices=" .. slices, unpack(replicas))
        assert.equal(without.out, ended.out)
        for _, rank in ipairs({ "0", "1" }) do
          local rows = explained(path, "--rank", rank, "slices=" .. slices, unpack(replicas))
            .decisions.shard_optimizer_over_replicate
          assert.is_true(#rows > 0)
          for _, row in ipairs(rows) do
            assert.is_true(row.value)
            has(row.rule.where, "\"auto\" for cpu-example")
          end
        end
      end
    end)
  end)

  it("E7 leaves the optimizer unsharded over replicas that cannot have that", function()
    launched.with_recipe(HEAD .. REST, function(path)
      for _, settings in ipairs({ { "mesh=1x2" }, { "mesh=2x1", "own_copies=true", "sync=2" } }) do
        for _, slices in ipairs({ "", "auto" }) do
          for _, row in ipairs(explained(path, "slices=" .. slices, unpack(settings))
            .decisions.shard_optimizer_over_replicate) do
            assert.is_false(row.value)
          end
        end
      end
    end)
  end)

  it("moves the state of a model that was used or resumed before", function()
    launched.with_recipe(HEAD .. REST, function(path)
      for _, settings in ipairs({ {}, { "mesh=2x1", "own_copies=true", "slices=auto" } }) do
        local folder = scratch.folder()
        local whole = run(path, "fixed=true", "steps=4", unpack(settings)).out
        run(path, "steps=2", "after=false", "checkpoint=" .. folder, unpack(settings))
        local resumed = run(path, "steps=4", "checkpoint=" .. folder, "resume=auto", unpack(settings)).out
        assert.equal(whole:match("3 .*$"), resumed:match("3 [%d.]+\n.*$"))
      end
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
