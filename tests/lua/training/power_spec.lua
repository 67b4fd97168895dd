-- What a comparison of two trainings can see: runs with one mistake each are found, in f32 as in bf16, by the bounds
-- that parity_spec.lua uses. The mistakes are the recipe's (wrong=...), on two ranks; the right run is one rank's.

local breadth = require("lua.support.breadth")
local trained = require("lua.support.trained")

local run, with = trained.run, trained.with

local TOLERANCE = { f32 = 1e-5, bf16 = 2e-2 }
local STEPS, AT = 10, 5

-- What differs, by the names of parameters and of what was compared: in how many steps.
local function found_of(settings, mistake)
  local right = run(1, with(settings, { mesh = "1x1" }))
  local differences = trained.differences(right, run(2, with(settings, with({ mesh = "1x2" }, mistake))),
    TOLERANCE[settings.dtype])
  local update, moments, first = {}, {}, STEPS + 1
  for _, each in ipairs(differences) do
    local by_name = each.what == "update" and update or moments
    by_name[each.name] = (by_name[each.name] or 0) + 1
    first = math.min(first, each.step or first)
  end
  return { update = update, moments = moments, first = first }
end

describe("a comparison of updates", function()
  for dtype in pairs(TOLERANCE) do
    for _, optimizer in ipairs(breadth.few { "adamw", "sgd" }) do
      local settings = { dtype = dtype, optimizer = optimizer, steps = STEPS }
      local of = (" of %s in %s"):format(optimizer, dtype)

      it("S12 finds nothing in the same training" .. of, function()
        assert.same({ update = {}, moments = {}, first = STEPS + 1 }, found_of(settings, {}))
      end)

      it("S13 finds a norm that one step leaves as it was" .. of, function()
        local found = found_of(settings, { wrong = "norm", wrong_at = AT })
        assert.is_truthy(found.update["norm.weight"] and found.update["norm.bias"])
        assert.equal(AT, found.first)
      end)

      it("S11 finds one step that does not clip" .. of, function()
        local found = found_of(settings, { wrong = "clip", wrong_at = AT })
        assert.equal(AT, found.first)
        for _, name in ipairs { "embed.weight", "layers.0.fc1.weight", "layers.1.fc2.bias", "head.weight" } do
          assert.is_truthy(found.update[name] or found.moments[name], name)
        end
      end)

      it("S1 finds half of a unit's gradient" .. of, function()
        local found = found_of(settings, { wrong = "half" })
        for _, name in ipairs { "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias" } do
          name = "layers.1." .. name
          assert.is_truthy(found.update[name] or found.moments[name], name)
        end
      end)
    end
  end
end)
