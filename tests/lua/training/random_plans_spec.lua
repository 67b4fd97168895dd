-- Random models under random rules, meshes and ways to train: some cases compared with one rank. `make fuzz-plans` and
-- `make soak` run many more.

local case = require("fuzz.case")
local cases = require("fuzz.cases")
local recipe = require("fuzz.recipe")
local shrink = require("fuzz.shrink")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has

local few = os.getenv("MOONSHARD_CONFIG") ~= "release" and os.getenv("MOONSHARD_CASES") == "few"
local SEED, COUNT = 1, breadth.all and 60 or few and 4 or 6

local function compare(first, count, per_host)
  local list = {}
  for i = 1, count do list[i] = case.of(first + i - 1) end
  local failed, refused = cases.run(list, per_host)
  if #failed == 0 then return list, refused end
  local minimal = shrink.minimal(failed[1])
  error(("%d of %d cases fail; seed %d: %s\nthe smallest case that fails so: %s\n\n%s"):format(#failed, count,
    failed[1].case.seed, failed[1].failure.text, minimal.failure.text, recipe.of(minimal.case)), 0)
end

describe("random plans", function()
  it(("S1 M1 M6 M7 T17 cases %d to %d equal one rank, and do what their plans say"):format(SEED, SEED + COUNT - 1),
    function()
      local list, refused = compare(SEED, COUNT)
      local divided = 0
      for _, each in ipairs(list) do divided = divided + ((each.tensor or each.context) and 1 or 0) end
      if few then return end -- too few to count
      assert.is_true(divided >= COUNT / 3, divided .. " cases have a dimension that divides layers or samples")
      assert.is_true(#refused <= 2 + divided / 4, #refused .. " cases are refused")
    end)

  for per_host = 1, 2 do
    it(("H1 some equal one rank with %d of their ranks on a host"):format(per_host), function()
      compare(SEED + COUNT * per_host, math.ceil(COUNT / 2), per_host)
    end)
  end

  it("a seed gives the same case again, and other seeds other ones #release", function()
    local seen, distinct = {}, 0
    for seed = 1, 100 do
      local text = recipe.of(case.of(seed)):gsub("^[^\n]*\n", "")
      assert.equal(text, (recipe.of(case.of(seed)):gsub("^[^\n]*\n", "")))
      if not seen[text] then seen[text], distinct = true, distinct + 1 end
    end
    assert(distinct > 95)
  end)

  it("Q1 Q4 Q8 S7 among them are products in 8 bits, stored weights, sums and gathers in few bits, copies", function()
    local drawn = {}
    for seed = 1, 400 do
      local sharding = case.of(seed).sharding
      for _, name in ipairs({ "fp8", "storage", "gather_dtype" }) do
        if sharding[name] then drawn[name] = (drawn[name] or 0) + 1 end
      end
      for _, name in ipairs({ "tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8" }) do
        if (sharding.fp8 or ""):find(('"%s"'):format(name), 1, true) then drawn[name] = true end
      end
      if sharding.storage and not sharding.fp8 and (sharding.freeze or ""):find("embed") then drawn.frozen = true end
      if (sharding.mp_policy or ""):find('"i[48]"') then drawn.sums = true end
      if (sharding.mp_policy or ""):find("param_copy", 1, true) then drawn.copies = (drawn.copies or 0) + 1 end
    end
    assert(drawn.fp8 >= 40 and drawn.storage >= 10 and drawn.gather_dtype >= 20 and drawn.copies >= 40, "few are drawn")
    for _, name in ipairs({ "tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8", "frozen", "sums" }) do
      assert.is_true(drawn[name], name .. " is never drawn")
    end
  end)

  it("S13 S18 among them are optimizers, groups with betas, and clipping of groups and by value #release", function()
    local drawn = {}
    for seed = 1, 400 do
      local each = case.of(seed)
      for _, name in ipairs { "adamw", "adam", "lion", "sgd" } do
        if each.optimizer:find("optim." .. name .. " ", 1, true) then drawn[name] = (drawn[name] or 0) + 1 end
      end
      if each.optimizer:find("betas", 1, true) then drawn.betas = (drawn.betas or 0) + 1 end
      if (each.trainer.clip_grad_norm or ""):find("{", 1, true) then drawn.norms = (drawn.norms or 0) + 1 end
      if each.trainer.clip_grad_value then drawn.values = (drawn.values or 0) + 1 end
    end
    for _, name in ipairs { "adamw", "adam", "lion", "sgd", "betas", "norms", "values" } do
      assert.is_true((drawn[name] or 0) >= 10, name .. " is drawn too rarely")
    end
  end)

  it("Q9 among them is Muon on meshes of copies, shards and ranks that divide layers #release", function()
    local drawn = { replicate = 0, shard = 0, tensor = 0, few_bits = 0 }
    for seed = 1, 400 do
      local each = case.of(seed)
      for _, dimension in ipairs(each.muon and { "replicate", "shard", "tensor" } or {}) do
        if (each[dimension] or 1) > 1 then drawn[dimension] = drawn[dimension] + 1 end
      end
      if each.muon and (each.sharding.mp_policy or ""):find('"i[48]"') then drawn.few_bits = drawn.few_bits + 1 end
    end
    for what, times in pairs(drawn) do
      assert.is_true(times >= (what == "few_bits" and 5 or 25), what .. " " .. times)
    end
  end)

  it("what fails is found, and made smaller while it fails in the same way #release", function()
    -- A rule that no reader accepts stands for a mistake: nothing else of the case is needed to show it.
    -- Each thing that a case can lack is a run, so it has not much to lack.
    local list = { case.of(3), case.of(4) }
    local broken = list[2]
    for _, holder in ipairs({ broken.sharding, broken.trainer }) do
      local names = {}
      for name in pairs(holder) do names[#names + 1] = name end
      table.sort(names)
      for i = 2, #names do holder[names[i]] = nil end
    end
    broken.sharding.reshard_after_forward = "7"
    local failed = cases.run(list)
    assert.equal(1, #failed)
    assert.equal(broken, failed[1].case)
    has(failed[1].failure.text, "groups of 7")
    local minimal = shrink.minimal(failed[1])
    assert.equal(0, #minimal.case.layers)
    assert.is_nil(minimal.case.placements)
    assert.same({ reshard_after_forward = "7" }, minimal.case.sharding)
    assert.same({}, minimal.case.trainer)
    assert.equal(1, minimal.case.steps)
    local text = recipe.of(minimal.case)
    has(text, "ms.fully_shard")
    assert.truthy(#text < 1200)
  end)
end)
