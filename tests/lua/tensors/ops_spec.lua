-- Ops and tensors: every row of the op table as a function, operators, methods, and what they refuse.

local ms = require("moonshard")
local engine = require("moonshard.base.ffi")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local message = fixture.message
local ops = ms.ops
ms.world().describe(0, 1)

local model = ms.module {
  w = ms.parameter { 8, 3 },
  forward = function(self, x) return x end,
}

-- Runs fn on x f32 [2,4,8], h bf16 [2,4,8], t i32 [2,4], inside of a trace.
local function within(fn)
  local result
  ms.trace.graph(model, {
    inputs = { { "x", "f32", { 2, 4, 8 } }, { "h", "bf16", { 2, 4, 8 } }, { "t", "i32", { 2, 4 } } },
    fn = function(inputs)
      result = { fn(inputs.x, inputs.h, inputs.t) }
      return {}
    end,
  })
  return unpack(result)
end

describe("ops", function()
  it("are the rows of the op table that are not the engine's own", function()
    local C, ffi = engine.C, engine.ffi
    local info = ffi.new("ms_op_info")
    for index = 0, C.ms_op_count() - 1 do
      engine.check(C.ms_op_describe(index, info, ffi.sizeof(info)))
      local name = ffi.string(info.name)
      assert.equal(info.internal == 0, ops.rows[name] ~= nil, name)
      local is_composed = ops.rows[name] == nil and ops.composed[name] ~= nil -- split has the name of an internal op
      assert.equal(info.internal == 0, rawget(ops, name) ~= nil and not is_composed, name)
    end
  end)

  it("are listed with their formulas", function()
    has(ops.help():match("\n *matmul ([^\n]*)"), "2 to 3 | { activation, out_dtype, trans_a, trans_b }")
    has(ops.help(), "softmax(q k' scale) v")
    has(ops.help():match("\n *all_gather ([^\n]*)"), "1 | mesh dimension")
  end)

  it("are listed with every other function of ms.ops and every method of tensors, each once", function()
    local listed, found = {}, {}
    for name in ("\n" .. ops.help()):gmatch("\n([%a_][%w_]*) ") do
      assert.is_nil(listed[name], name)
      listed[name] = true
    end
    for _, functions in ipairs({ ops, require("moonshard.tensor.class").methods }) do
      for name, value in pairs(functions) do
        if type(value) == "function" then
          assert.truthy(listed[name], name)
          found[name] = true
        end
      end
    end
    for name in pairs(listed) do assert.truthy(found[name], name) end
  end)

  for title, case in pairs({
    ["addition of tensors"] = { function(x) return x + x end, "f32", { 2, 4, 8 } },
    ["addition of a number"] = { function(x) return 1 + x end, "f32", { 2, 4, 8 } },
    ["mixed types"] = { function(x, h) return x * h end, "f32", { 2, 4, 8 } },
    ["a number on the left"] = { function(_, h) return 2 / (3 - h) end, "bf16", { 2, 4, 8 } },
    ["negation and powers"] = { function(x) return -x ^ 2 + x ^ 0.5 + x ^ 7 + 2 ^ x end, "f32", { 2, 4, 8 } },
    ["a power by a number keeps the type"] = { function(_, h) return h ^ 2.7 end, "bf16", { 2, 4, 8 } },
    ["a power by a tensor"] = { function(x, h) return h ^ x end, "f32", { 2, 4, 8 } },
    ["a parameter on either side"] = { function(x)
      return model.w:transpose(0, 1):sum(0) * x + x:sum(2, true) / model.w:slice(0, 0, 1):reshape(3):slice(0, 0, 1)
    end, "f32", { 2, 4, 8 } },
    ["matmul with a parameter"] = { function(x) return x:matmul(model.w) end, "f32", { 2, 4, 3 } },
    ["a transposed product"] = { function(x) return ops.matmul(x, x, { trans_b = true }) end, "f32", { 2, 4, 4 } },
    ["another type of the result"] = { function(x) return ops.matmul(x, model.w, { out_dtype = "bf16" }) end, "bf16",
      { 2, 4, 3 } },
    ["reshape with sizes"] = { function(x) return x:reshape(8, -1) end, "f32", { 8, 8 } },
    ["reshape with a list"] = { function(x) return x:reshape({ 2, 32 }) end, "f32", { 2, 32 } },
    ["reshape to a scalar's neighbour"] = { function(x) return x:sum():reshape(1, 1) end, "f32", { 1, 1 } },
    ["transpose of two axes"] = { function(x) return x:transpose(0, -1) end, "f32", { 8, 4, 2 } },
    ["permute"] = { function(x) return x:permute(1, 2, 0) end, "f32", { 4, 8, 2 } },
    ["slice"] = { function(x) return x:slice(-1, 2) end, "f32", { 2, 4, 6 } },
    ["slice from the end"] = { function(x) return x:slice(1, -3, -1) end, "f32", { 2, 2, 8 } },
    ["concat of arguments"] = { function(x) return ops.concat(x, x, { axis = 1 }) end, "f32", { 2, 8, 8 } },
    ["concat of a list"] = { function(x) return ops.concat({ x, x, x }, { axis = 2 }) end, "f32", { 2, 4, 24 } },
    ["sum of all"] = { function(x) return x:sum() end, "f32", {} },
    ["mean of an axis"] = { function(x) return x:mean(1) end, "f32", { 2, 8 } },
    ["max that keeps the axis"] = { function(x) return x:max(-1, true) end, "f32", { 2, 4, 1 } },
    ["cast"] = { function(x) return x:cast("bfloat16") end, "bf16", { 2, 4, 8 } },
    ["cast to its own type"] = { function(x) return x:cast("f32") end, "f32", { 2, 4, 8 } },
    ["comparison and where"] = { function(x) return ops.where(ops.less(x, x * 2), x, -x) end, "f32", { 2, 4, 8 } },
    ["broadcast_to"] = { function(x) return x:sum(0):broadcast_to(3, 4, 8) end, "f32", { 3, 4, 8 } },
    ["a fused activation by name"] = { function(x) return ops.matmul(x, model.w, { activation = "gelu_tanh" }) end,
      "f32", { 2, 4, 3 } },
  }) do
    it("give type and shape: " .. title, function()
      local y = within(case[1])
      assert.equal(case[2], y.dtype)
      assert.same(case[3], y.shape)
    end)
  end

  it("return their first output, and all through apply", function()
    local count, outputs = within(function(x)
      local g = x:sum(0):sum(0)
      return select("#", ops.layer_norm(x, g, g)), ops.apply("layer_norm", { x, g, g }, { eps = 1e-6 })
    end)
    assert.equal(1, count)
    assert.same({ 8, 2 }, outputs[2].shape)
  end)

  it("make one value of a parameter", function()
    local first, second = within(function(x)
      x:matmul(model.w)
      return x.trace:parameter(model.w).id, x.trace:parameter(model.w).id
    end)
    assert.equal(first, second)
  end)

  it("know sizes", function()
    local sizes, last, axes = within(function(x) return x:size(), x:size(-1), x:dim() end)
    assert.same({ 2, 4, 8 }, sizes)
    assert.same({ 8, 3 }, { last, axes })
  end)

  for title, case in pairs({
    ["an unknown attribute"] = { function(x) return ops.matmul(x, x, { tran_b = 1 }) end, "trans_b?" },
    ["an unknown op"] = { function(x) return ops.sofmax(x) end, "softmax?" },
    ["a number as an input"] = { function(x) return ops.matmul(x, 3) end, "matmul | input 2 | tensor | 3" },
    ["nil as an input"] = { function(x) return x + nil end, "add | input 2 | tensor | nil" },
    ["a wrong number of inputs"] = { function(x) return ops.matmul(x) end, "matmul | 1 | 2 to 3" },
    ["shapes that do not fit"] = { function(x) return x:matmul(x) end, "matmul | [2,4,8]" },
    ["types that do not fit"] = { function(x, h) return x:matmul(h:transpose(1, 2)) end, "cast" },
    ["a real where an integer belongs"] = { function(x) return ops.sum(x, { axis = 0.5 }) end,
      "axis | integer" },
    ["text where a number belongs"] = { function(x) return ops.scale(x, { alpha = "2" }) end,
      "alpha | number" },
    ["too many sizes"] = { function(x) return x:reshape(1, 1, 1, 1, 1, 1, 64) end, "6" },
    ["an axis outside"] = { function(x) return x:slice(3, 0) end, "0 to 2" },
    ["a power by what is no number"] = { function(x) return x ^ "7" end, "pow | input 2 | tensor" },
    ["attributes given twice"] = { function(x) return ops.sum(x, { axis = 1 }, { axis = 1 }) end, "twice" },
  }) do
    it("refuse " .. title, function()
      local text = message(within, function(...)
        local y = case[1](...)
        return y
      end)
      has(text, case[2])
      assert.truthy(text:find("tests/lua/tensors/ops_spec.lua:%d+: "), text)
    end)
  end

  it("refuse a tensor of another trace", function()
    local stale = within(function(x) return x end)
    local text = message(within, function(x) local _ = x + stale end)
    has(text, "trace")
  end)
end)

describe("a trace", function()
  local function graph(results)
    return ms.trace.graph(model, {
      inputs = { { "x", "f32", { 2, 3 } } },
      fn = function(inputs) return results(inputs.x) end,
    })
  end

  it("keeps its inputs, loss and outputs", function()
    local made = graph(function(x) return { loss = x:mean(), outputs = { b = x, a = x * 2 } } end)
    assert.same({}, made.loss.shape)
    assert.same({ 2, 3 }, made.outputs.a.shape)
    assert.same({ 2, 3 }, made.inputs.x.shape)
  end)

  for title, case in pairs({
    ["a loss that is no scalar"] = { function(x) return { loss = x } end, "f32" },
    ["a loss that is no tensor"] = { function() return { loss = 3 } end, "loss | tensor | 3" },
    ["an output that is no tensor"] = { function() return { outputs = { y = "z" } } end, "output y | tensor" },
    ["a function that returns a tensor"] = { function(x) return x end, "must return { loss" },
  }) do
    it("refuses " .. title, function() has(message(graph, case[1]), case[2]) end)
  end
end)
