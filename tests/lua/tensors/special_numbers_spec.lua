-- Operators between a tensor and a number on either side, and functions, where numbers are infinite, not a number,
-- zeros of either sign, or at the ends of f32. Values and gradients are PyTorch's, which
-- tests/fixtures/ops/special_numbers.py has written: eagerly, in a plan of the CPU, and in one of the device cuda with
-- emulated kernels.

local json = require("cjson")
local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local FIXTURE = "tests/fixtures/ops/special_numbers.safetensors"
local file = ms.safetensors.open(FIXTURE)

local function stored(name)
  local found = file:tensor(name)
  local x = ms.zeros(found.shape, { dtype = "f32" })
  if found.dtype == "F64" then
    local numbers = require("ffi").new("double[?]", found.shape[1])
    file:read(name, 0, found.bytes, numbers)
    local list = {}
    for i = 1, found.shape[1] do list[i] = numbers[i - 1] end
    return list
  end
  file:read(name, 0, found.bytes, x.data)
  return x:tolist()
end

local cases = require("lua.tensors.special_numbers")
local elements, numbers = stored("x"), stored("c")

local NORMAL = 2 ^ -126 -- numbers below f32's normal ones count as zeros

-- exact: also of zeros, which then have PyTorch's sign.
local function same(expected, got, exact)
  if expected ~= expected then return got ~= got end
  if expected == got then return expected ~= 0 or not exact or 1 / expected == 1 / got end
  return not exact and math.abs(expected - got) <= math.max(NORMAL, 2e-6 * math.abs(expected))
end

-- of: results whose numbers may be NaN where these are.
local function assert_same(expected, got, what, exact, of)
  for i, row in ipairs(expected) do
    for j, value in ipairs(row) do
      local is, undefined = got[i][j], of and of[i][j] ~= of[i][j]
      if not same(value, is, exact) and not (undefined and is ~= is) then
        error(("%s, number %g, element %g: %g instead of %g"):format(what, numbers[i], elements[j], is, value), 0)
      end
    end
  end
end

local function compare(results)
  for name, case in pairs(cases.all) do
    local y = stored(name .. ".y")
    assert_same(y, results[name].y, name, case.exact)
    if file.by_name[name .. ".dx"] then
      assert_same(stored(name .. ".dx"), results[name].dx, "gradient of " .. name, false, y)
    end
  end
end

describe("an operator with a number", function()
  it("G2 gives PyTorch's values eagerly", function()
    for name, case in pairs(cases.all) do
      assert_same(stored(name .. ".y"), cases.rows(case, ms.tensor(elements), numbers), name, case.exact)
    end
  end)

  it("G2 has a case for each of the fixture's", function()
    for _, tensor in ipairs(file.tensors) do
      local name = tensor.name:match("^(.*)%.")
      assert.truthy(not name or cases.all[name], tensor.name)
    end
  end)

  it("G2 gives PyTorch's values and gradients in a plan", function()
    compare(cases.planned("cpu", elements, numbers))
  end)

  it("% is refused by name", function()
    local x = ms.tensor { 5 }
    has(fixture.message(function() return x % 2 end), "x % y | remainder")
    has(fixture.message(function() return 2 % x end), "x % y | remainder")
  end)
end)

local function words_of(list)
  local words = {}
  for i, number in ipairs(list) do words[i] = ("%.17g"):format(number) end
  return table.concat(words, ",")
end

describe("on the emulated device", function()
  it("G2 an operator with a number gives PyTorch's values and gradients", function()
    local out = os.tmpname()
    local folder = os.getenv("MOONSHARD_BIN"):match("^(.*)/")
    local ended = program.run({
      "run", "tests/lua/tensors/recipes/special_numbers.lua", "--device", "cuda", "out=" .. out,
      "elements=" .. words_of(elements), "numbers=" .. words_of(numbers),
    }, program.emulated_cuda(("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so"):format(folder)))
    assert.equal(0, ended.status, ended.err)
    local results = json.decode(scratch.read(out))
    os.remove(out)
    for _, case in pairs(results) do
      for _, rows in pairs(case) do
        for _, row in ipairs(rows) do
          for j, text in ipairs(row) do row[j] = tonumber(text) end
        end
      end
    end
    compare(results)
  end)
end)
