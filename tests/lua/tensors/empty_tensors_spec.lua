-- Tensors without elements, as a rank's part of a parameter of which it owns nothing: ops whose results have no
-- elements either give them in their shapes, sums are 0, and other ops say why they have nothing to compute.

local has = require("lua.support.message").has
local program = require("lua.support.program")

-- On four ranks the last one has no row of three.
local RECIPE = [[
local ms = require "moonshard"
local model = ms.nn.linear(8, 3)
ms.fully_shard(model, { mesh = "1x4" })
local before, dict = model:parameter("weight"), model:state_dict()
local none = dict.weight
for name in model:named_parameters() do dict[name] = dict[name] * 1.5 end
model:load_state_dict(dict)
assert((model:parameter("weight") - before * 1.5):abs():max():item() == 0)
if ms.world().rank ~= 3 then return end

local function is(x, dtype, ...)
  assert(x.dtype == dtype and x:numel() == 0 and table.concat(x.shape, ",") == table.concat({ ... }, ","), tostring(x))
end
is(none, "f32", 0, 8)
is(none + none, "f32", 0, 8)
is(none + ms.ones(8), "f32", 0, 8)
is(2 ^ -none:relu(), "f32", 0, 8)
is(none:gt(0), "u8", 0, 8)
is(none:cast("bf16"), "bf16", 0, 8)
is(none:reshape(-1), "f32", 0)
is(none:reshape(none.shape), "f32", 0, 8)
is(none:reshape(0, 2, 4), "f32", 0, 2, 4)
is(none:transpose(0, 1), "f32", 8, 0)
is(none:sum(1), "f32", 0)
is(none:matmul(ms.ones(8, 2)), "f32", 0, 2)
assert(none:sum():item() == 0)
assert(table.concat(none:sum(0):tolist(), " ") == "0 0 0 0 0 0 0 0")
for _, call in ipairs {
  function() return none:max() end, function() return none:mean() end, function() return none + ms.ones(3, 8) end,
  function() return none:reshape(3) end,
} do
  print(select(2, pcall(call)))
end
print(select(2, pcall(function() return none + ms.ones(8):cast("i32") end)))
]]

describe("tensors without elements", function()
  it("are computed with by the rank that has them, as far as there is something to say", function()
    local recipe = program.recipe(RECIPE)
    local ended = program.run { "run", recipe, "-n", "4", "--log-ranks", "all" }
    os.remove(recipe)
    assert.equal(0, ended.status, ended.err)
    for what in ("max of [0,8]; mean of [0,8]; add of [0,8] and [3,8]; reshape of [0,8]"):gmatch("[^;]+") do
      has(ended.out, what:gsub("^ ", "") .. " | no elements | owns nothing | numel()")
    end
    has(ended.out, "add: | i32")
  end)
end)
