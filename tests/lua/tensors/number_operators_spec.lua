-- Operators with a number on either side, at infinities, NaN and zeros of both signs, eager and in a compiled plan. The
-- expected values are those of IEEE arithmetic, which PyTorch's are, too.

local ms = require("moonshard")

local inf, nan = math.huge, 0 / 0
local VALUES = { inf, -inf, nan, 0, -0.0, 2, -3, 0.5 }
local NUMBERS = { 1, -2, 0, 0.5, inf, -inf, 3e38, 1e-39 }

local OPERATORS = {
  ["+"] = function(a, b) return a + b end, ["-"] = function(a, b) return a - b end,
  ["*"] = function(a, b) return a * b end, ["/"] = function(a, b) return a / b end,
}

-- f32, as the tensors have it.
local function rounded(x) return tonumber(require("ffi").new("float[1]", x)[0]) end

local function text(x) return x ~= x and "nan" or ("%.6g"):format(x) end

-- A zero's sign is compared where the result is exact.
local function assert_values(expected, got, what, signs)
  for i, value in ipairs(expected) do
    local a, b = text(value), text(got[i])
    if not signs then a, b = a:gsub("^%-0$", "0"), b:gsub("^%-0$", "0") end
    assert(a == b, ("%s of %s: %s, not %s"):format(what, text(VALUES[i]), b, a))
  end
end

local function expect(call)
  local list = {}
  for i, x in ipairs(VALUES) do list[i] = rounded(call(x)) end
  return list
end

-- Each case: what it is, the call, whether signs of zeros count.
local function cases()
  local list = {}
  for name, operator in pairs(OPERATORS) do
    local signs = true
    for _, number in ipairs(NUMBERS) do
      number = rounded(number)
      list[#list + 1] = { text(number) .. " " .. name .. " x", function(x) return operator(number, x) end, signs }
      list[#list + 1] = { "x " .. name .. " " .. text(number), function(x) return operator(x, number) end, signs }
    end
  end
  list[#list + 1] = { "-x", function(x) return -x end, true }
  list[#list + 1] = { "x ^ -1", function(x) return x ^ -1 end, true }
  list[#list + 1] = { "x ^ 2", function(x) return x ^ 2 end, true }
  list[#list + 1] = { "2 ^ x", function(x) return 2 ^ x end, true }
  return list
end

describe("G2 operators with numbers", function()
  it("give IEEE values in eager work", function()
    for _, case in ipairs(cases()) do
      assert_values(expect(case[2]), case[2](ms.tensor(VALUES)):tolist(), case[1], case[3])
    end
  end)

  it("give the same values in a compiled plan", function()
    local all = cases()
    local Net = ms.module "Net"
    function Net:init() self.unused = ms.parameter { 1 } end
    function Net:forward(x) -- luacheck: ignore 212
      local rows = {}
      for i, case in ipairs(all) do rows[i] = case[2](x) end
      return ms.ops.stack(rows, 0)
    end
    local model = ms.fully_shard(Net(), { mesh = "1x1" })
    local got = model(ms.tensor(VALUES)):tolist()
    for i, case in ipairs(all) do assert_values(expect(case[2]), got[i], case[1], case[3]) end
  end)

  it("have the gradients of 1 / x", function()
    local Net = ms.module "Net"
    function Net:init() self.w = ms.parameter { 3, init = ms.init.constant(1) } end
    function Net:forward(b) return (1 / (self.w * b.x)):sum() end
    local model = ms.fully_shard(Net(), { mesh = "1x1" })
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 },
      forward = function(net, b) return net(b) end }
    -- d (1 / (w x)) / dw = -1 / (w^2 x).
    train:step { x = ms.tensor { 3e18, -2, 0.5 } }
    local gradient = train:gradient("w"):tolist()
    assert_values({ rounded(-1 / 3e18), 0.5, -2 }, gradient, "gradient")
  end)

  it("make a sigmoid by hand that ends at 0 and 1", function()
    local x = ms.tensor { 100, 0, -100, -1000 }
    assert.same({ 1, 0.5, 0, 0 }, (1 / (1 + (-x):exp())):tolist())
  end)
end)
