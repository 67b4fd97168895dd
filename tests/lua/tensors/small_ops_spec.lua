-- The small ops that models are written with: comparisons, choices and bounds, with numbers on either side; reductions,
-- softmax and joins over any axes; PyTorch's names for shapes. Each eagerly and in a trace, with the same numbers.

local ms = require("moonshard")
local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local message = fixture.message
local ops = ms.ops
ms.world().describe(0, 1)

local model = ms.module { w = ms.parameter { 2, 3, init = "ones" }, forward = function(_, x) return x end }

-- What `make` gives in a trace, whose inputs are the eager tensors of the case: its type and shape.
local function traced(make, tensors)
  local inputs, result = {}, nil
  for i, x in ipairs(tensors) do inputs[i] = { "input " .. i, x.dtype, x.shape } end
  ms.trace.graph(model, {
    inputs = inputs,
    fn = function(values)
      local symbols = {}
      for i = 1, #tensors do symbols[i] = values["input " .. i] end
      result = make(unpack(symbols))
      return {}
    end,
  })
  return result
end

local function assert_gives(expected, dtype, make, ...)
  local eager, symbol = make(...), traced(make, { ... })
  assert.equal(dtype, eager.dtype)
  assert.same(expected, eager:tolist())
  assert.equal(dtype, symbol.dtype)
  assert.same(eager.shape, symbol.shape)
end

local x = ms.tensor { { 1, -2, 3 }, { 4, 5, -6 } }
local tokens = ms.tensor({ { 5, 3, 0 }, { 7, 0, 0 } }, { dtype = "i32" })

describe("comparisons", function()
  it("give masks, with tensors that broadcast and with numbers on either side", function()
    local row = ms.tensor { 1, 0, -6 }
    assert_gives({ { 0, 1, 0 }, { 0, 0, 0 } }, "u8", function(a, b) return a:lt(b) end, x, row)
    assert_gives({ { 1, 1, 0 }, { 0, 0, 1 } }, "u8", function(a, b) return a:le(b) end, x, row)
    assert_gives({ { 0, 0, 1 }, { 1, 1, 0 } }, "u8", function(a, b) return a:gt(b) end, x, row)
    assert_gives({ { 1, 0, 1 }, { 1, 1, 1 } }, "u8", function(a, b) return a:ge(b) end, x, row)
    assert_gives({ { 1, 0, 0 }, { 0, 0, 1 } }, "u8", function(a, b) return a:eq(b) end, x, row)
    assert_gives({ { 0, 1, 1 }, { 1, 1, 0 } }, "u8", function(a, b) return a:ne(b) end, x, row)
    assert_gives({ { 0, 1, 0 }, { 0, 0, 1 } }, "u8", function(a) return a:less(0) end, x)
    assert_gives({ { 1, 0, 1 }, { 1, 1, 0 } }, "u8", function(a) return ops.less(0, a) end, x)
    assert_gives({ { 1, 0, 1 }, { 1, 1, 0 } }, "u8", function(a) return ops.greater(a, 0) end, x)
    assert_gives({ { 0, 1, 0 }, { 0, 0, 1 } }, "u8", function(a) return a:cast("bf16"):le(-2) end, x)
  end)

  it("of tokens make a padding mask, for where and, cast, for a product", function()
    assert_gives({ { 0, 0, 1 }, { 0, 1, 1 } }, "u8", function(t) return t:equal(0) end, tokens)
    assert_gives({ { 5, 3, -100 }, { 7, -100, -100 } }, "i32",
      function(t) return ops.where(t:eq(0), -100, t) end, tokens)
    assert_gives({ { 1, -2, 0 }, { 4, 0, 0 } }, "f32",
      function(a, t) return a * t:ne(0):cast("f32") end, x, tokens)
    assert_gives({ { 1, -2, -1e9 }, { 4, -1e9, -1e9 } }, "f32",
      function(a, t) return a:masked_fill(t:eq(0), -1e9) end, x, tokens)
    assert_gives({ 2, 1 }, "i32", function(t) return t:gt(0):float():sum(1):cast("i32") end, tokens)
  end)

  it("join as masks", function()
    assert_gives({ { 1, 0, 0 }, { 1, 0, 0 } }, "u8", function(a, t) return a:gt(0):logical_and(t:ne(0)) end, x, tokens)
    assert_gives({ { 1, 1, 1 }, { 1, 1, 0 } }, "u8", function(a, t) return a:gt(0):logical_or(t:ne(0)) end, x, tokens)
    assert_gives({ { 0, 1, 0 }, { 0, 0, 1 } }, "u8", function(a) return a:gt(0):logical_not() end, x)
  end)

  it("join as masks where true is any number but 0", function()
    local a = ms.tensor { 0, 2, 0, 255, 1, 7, dtype = "u8" }
    local b = ms.tensor { 0, 0, 3, 128, 1, 2, dtype = "u8" }
    assert_gives({ 0, 0, 0, 1, 1, 1 }, "u8", function(c, d) return c:logical_and(d) end, a, b)
    assert_gives({ 0, 1, 1, 1, 1, 1 }, "u8", function(c, d) return c:logical_or(d) end, a, b)
  end)

  it("take parameters and numbers in where", function()
    local made = traced(function(a) return ops.where(a:gt(0), model.w, 0), model.w:maximum(0) end, { x })
    assert.same({ 2, 3 }, made.shape)
    assert_gives({ { 1, 0, 1 }, { 1, 1, 0 } }, "f32", function(a) return ops.where(a:gt(0), 1, 0) end, x)
    assert_gives({ { 1, 0, 1 }, { 1, 1, 0 } }, "f32",
      function(a) return ops.apply("where", { a:gt(0), 1, 0 })[1] end, x)
  end)

  it("refuse what cannot be compared", function()
    has(message(function() return tokens:lt(0.5) end)
      , "less | 0.5 | i32")
    has(message(function() return tokens:lt(x) end)
      , "less | i32 | f32 | cast")
    has(message(function() return ops.where(1, x, x) end), "where: | input 1 | tensor")
    has(message(function() return x:cast("u8") end), "cast | u8 | f32 | bf16 | i32")
  end)

  it("by Lua's operators are refused with the method", function()
    local y = x + 1
    for operator, compare in pairs({
      ["<"] = function() return x < y end, ["<="] = function() return x <= y end, ["=="] = function() return x == y end,
      [">"] = function() return x > y end,
    }) do
      local text = message(compare)
      has(text, "tensor | true or false | x:")
      has(text, "small_ops_spec.lua:")
    end
    has(message(function() return model.w < model.w end), "x:lt(y)")
    local path = program.recipe('local ms = require "moonshard"\nlocal y = ms.ones(2)\nif y < 3 then print(y) end\n')
    local ended = program.run({ "run", path })
    os.remove(path)
    assert.equal(2, ended.status)
    has(ended.err, ":3: attempt to compare")
    has(ended.err, "tensor | x:lt(y)")
  end)

  it("are not those of Lua's math, whose errors say what is", function()
    for call, expected in pairs({ ["math.sqrt(y)"] = "x:sqrt()", ["math.max(y, 0)"] = "x:maximum(0)" }) do
      local path = program.recipe(('local ms = require "moonshard"\nlocal y = ms.ones(2)\nprint(%s)\n'):format(call))
      local ended = program.run({ "run", path })
      os.remove(path)
      assert.equal(2, ended.status)
      has(ended.err, ":3: bad argument #1 | number expected, got table | " .. expected)
    end
  end)
end)

describe("bounds", function()
  it("softplus is the bound of relu that has a slope everywhere, and keeps large and small numbers", function()
    local y = ops.softplus(ms.tensor { -200, -20, 0, 1, 200 }):tolist()
    for i, expected in ipairs { 0, 2.0611536e-9, 0.6931472, 1.3132617, 200 } do
      assert.near(expected, y[i], 3e-7 * expected)
    end
    assert.same(y, ms.tensor({ -200, -20, 0, 1, 200 }):softplus():tolist())
  end)

  it("clamp below, above or both, and choose the larger or the smaller", function()
    assert_gives({ { 1, 0, 3 }, { 4, 5, 0 } }, "f32", function(a) return a:clamp(0) end, x)
    assert_gives({ { 1, -2, 2 }, { 2, 2, -6 } }, "f32", function(a) return a:clamp { max = 2 } end, x)
    assert_gives({ { 1, -1, 2 }, { 2, 2, -1 } }, "f32", function(a) return ops.clamp(a, -1, 2) end, x)
    assert_gives({ { 1, 2, 3 }, { 4, 5, 6 } }, "f32", function(a) return a:abs() end, x)
    assert_gives({ { 1, 0, 3 }, { 4, 5, 0 } }, "f32", function(a) return ops.maximum(0, a) end, x)
    assert_gives({ { 1, -2, 3 }, { 1, 2, -6 } }, "f32", function(a, b) return a:minimum(b) end, x,
      ms.tensor { 1, 2, 3 })
    has(message(function() return x:clamp() end), "clamp | min | max")
    has(message(function() return x:clamp(2, 1) end), "clamp | min | 2 | max | 1")
  end)
end)

-- Element [i][j][k][l] of a tensor 2 x 3 x 4 x 5, and what a reduction over some axes gives by plain loops.
local SHAPE = { 2, 3, 4, 5 }
local numbers = ms.randn { 2, 3, 4, 5, seed = 3 }
local JOIN = {
  sum = function(a, b) return a + b end, mean = function(a, b) return a + b end, max = math.max, min = math.min,
}

local function by_loops(name, set)
  local data, results, counts, order = numbers:flatten():tolist(), {}, {}, {}
  for at = 0, #data - 1 do
    local rest, key = at, {}
    for axis = 4, 1, -1 do
      key[axis] = set[axis - 1] and "-" or rest % SHAPE[axis]
      rest = math.floor(rest / SHAPE[axis])
    end
    local place = table.concat(key, " ")
    if not results[place] then order[#order + 1] = place end
    results[place] = results[place] and JOIN[name](results[place], data[at + 1]) or data[at + 1]
    counts[place] = (counts[place] or 0) + 1
  end
  for i, place in ipairs(order) do order[i] = name == "mean" and results[place] / counts[place] or results[place] end
  return order
end

describe("reductions", function()
  it("go over any axes, and keep them when asked", function()
    for mask = 1, 15 do
      local axes, set, kept, left = {}, {}, {}, {}
      for axis = 0, 3 do
        set[axis] = math.floor(mask / 2 ^ axis) % 2 == 1
        if set[axis] then axes[#axes + 1] = axis % 2 == 0 and axis or axis - 4
        else left[#left + 1] = SHAPE[axis + 1] end
        kept[axis + 1] = set[axis] and 1 or SHAPE[axis + 1]
      end
      for name in pairs(JOIN) do
        local what = name .. " over " .. table.concat(axes, ",")
        local got = numbers[name](numbers, axes)
        assert.same(left, got.shape, what)
        assert.same(left, traced(function(a) return a[name](a, axes) end, { numbers }).shape, what)
        assert.same(kept, numbers[name](numbers, axes, true).shape, what)
        assert.same(kept, ops[name](numbers, { axis = axes, keepdim = true }).shape, what)
        for i, expected in ipairs(by_loops(name, set)) do
          assert.near(expected, got:reshape(-1):tolist()[i], 1e-5, what)
        end
      end
    end
  end)

  it("cover all axes by default, and refuse one that does not exist", function()
    assert.same({}, x:min().shape)
    assert.equal(-6, x:min():item())
    assert.same({ 1, 1 }, x:sum(nil, true).shape)
    assert.same({ 2 }, x:sum({ axis = 1 }).shape)
    assert.same({ 3 }, ops.max(x, 0).shape)
    assert.same({ 2 }, ops.max(x).shape)
    assert.same({ 2, 3 }, ops.softmax(x).shape)
    has(message(function() return x:sum({ 0, -2 }) end)
      , "axis 0 | [2,3] | twice")
    has(message(function() return x:sum({ 0, 2 }) end)
      , "axis 2 | [2,3] | 0 to 1")
    has(message(function() return x:max(x) end), "x:maximum(y)")
  end)
end)

describe("softmax", function()
  it("goes over any axes", function()
    for _, axes in ipairs({ 1, { 1 }, { 0, 2 }, { 2, 3 }, -1, { 0, 1, 2, 3 }, { 3, 1 } }) do
      local y, log = numbers:softmax(axes), ops.log_softmax(numbers, { axis = axes })
      assert.same(SHAPE, y.shape)
      assert.same(SHAPE, traced(function(a) return a:softmax(axes) end, { numbers }).shape)
      local expected = numbers:exp()
      expected = (expected / expected:sum(axes, true)):flatten():tolist()
      local got, logs = y:flatten():tolist(), log:exp():flatten():tolist()
      for i, value in ipairs(expected) do
        assert.near(value, got[i], 1e-6)
        assert.near(value, logs[i], 1e-6)
      end
    end
  end)
end)

describe("shapes", function()
  it("have PyTorch's names", function()
    for name, case in pairs({
      view = { { 6 }, function(a) return a:view(-1) end },
      ["unsqueeze in front"] = { { 1, 2, 3 }, function(a) return a:unsqueeze(0) end },
      ["unsqueeze at the end"] = { { 2, 3, 1 }, function(a) return a:unsqueeze(-1) end },
      squeeze = { { 2, 3 }, function(a) return a:view(1, 2, 1, 3):squeeze() end },
      ["squeeze of one"] = { { 1, 2, 3 }, function(a) return a:view(1, 2, 1, 3):squeeze(2) end },
      ["squeeze of what is larger"] = { { 2, 3 }, function(a) return a:squeeze(0) end },
      flatten = { { 6 }, function(a) return a:flatten() end },
      ["flatten of some"] = { { 1, 6 }, function(a) return a:unsqueeze(0):flatten(1) end },
      t = { { 3, 2 }, function(a) return a:t() end },
      mm = { { 2, 2 }, function(a) return a:mm(a:t()) end },
      expand = { { 4, 2, 3 }, function(a) return a:unsqueeze(0):expand(4, -1, -1) end },
      cat = { { 2, 6 }, function(a) return ops.cat({ a, a }, 1) end },
      ["cat as a method"] = { { 4, 3 }, function(a) return a:cat(a) end },
      stack = { { 2, 2, 3 }, function(a) return ops.stack({ a, a }, 1) end },
    }) do
      assert.same(case[1], case[2](x).shape, name)
      assert.same(case[1], traced(case[2], { x }).shape, name)
    end
    assert.same({ 1, -2, 3, 4, 5, -6 }, x:flatten():tolist())
    has(message(function() return x:unsqueeze(4) end), "0 to 2")
    has(message(function() return x:unsqueeze(0):t() end), "two axes")
    has(message(function() return x:flatten(1, 0) end), "first | last")
  end)

  it("join any number of tensors along any axis", function()
    for _, count in ipairs({ 1, 8, 9, 70 }) do
      for axis = -2, 1 do
        local parts, expected = {}, {}
        for i = 1, count do parts[i] = x + i end
        local joined = ops.concat(parts, { axis = axis })
        assert.equal(6 * count, joined:numel())
        assert.equal((axis % 2 == 0 and 2 or 3) * count, joined.shape[axis % 2 + 1])
        for i = 1, count do
          local size = axis % 2 == 0 and 2 or 3
          expected[i] = joined:slice(axis, (i - 1) * size, i * size):tolist()
          assert.same(parts[i]:tolist(), expected[i])
        end
      end
    end
  end)
end)

describe("a method that is not there", function()
  it("is answered with the nearest names", function()
    for name, expected in pairs({
      sofmax = "tensor | sofmax: | softmax",
      unsqeeze = "tensor | unsqeeze: | unsqueeze | squeeze",
      numpy = "tensor | numpy | PyTorch | tolist",
      qqqqqqqqqq = "tensor | qqqqqqqqqq:",
    }) do
      local text = message(function() return x[name](x) end)
      has(text, expected)
      has(text, "small_ops_spec.lua:")
    end
    has(message(function() return model.w:sofmax() end)
      , "parameter | method sofmax")
  end)
end)

describe("a padding mask made of tokens inside of a model", function()
  it("trains as one rank does, in f32 and bf16", function()
    for _, settings in ipairs(breadth.few({ { "mesh=1x2" }, { "mesh=2x1" }, { "mesh=1x2", "dtype=bf16" } })) do
      local ended = program.run({ "check", "tests/lua/tensors/recipes/padding_mask.lua", "-n", "2", unpack(settings) })
      assert.equal(0, ended.status, ended.err .. ended.out)
      has(ended.out, "tolerance")
    end
  end)
end)
