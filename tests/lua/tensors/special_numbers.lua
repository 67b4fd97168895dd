-- Operators between a tensor and a number on either side, and functions of a tensor, by name; what they give eagerly,
-- and in a plan, with gradients. tests/fixtures/ops/special_numbers.py has the same.

local ms = require("moonshard")
local ops = ms.ops

local function mask(compare)
  return function(x, c) return compare(x, c):cast("f32") end
end

local function function_of(op)
  return function(x) return op(x) end
end

local special_numbers = {}

---of: the function; exact: zeros have PyTorch's sign; alone: it takes no number.
special_numbers.all = {
  add = { exact = true, of = function(x, c) return x + c end },
  add_left = { exact = true, of = function(x, c) return c + x end },
  sub = { exact = true, of = function(x, c) return x - c end },
  sub_left = { exact = true, of = function(x, c) return c - x end },
  mul = { exact = true, of = function(x, c) return x * c end },
  mul_left = { exact = true, of = function(x, c) return c * x end },
  div = { of = function(x, c) return x / c end },
  div_left = { of = function(x, c) return c / x end },
  pow = { of = function(x, c) return x ^ c end },
  pow_left = { of = function(x, c) return c ^ x end },
  lt = { exact = true, of = mask(function(x, c) return x:lt(c) end) },
  le = { exact = true, of = mask(function(x, c) return ops.less_equal(x, c) end) },
  gt = { exact = true, of = mask(function(x, c) return ops.less(c, x) end) },
  ge = { exact = true, of = mask(function(x, c) return x:ge(c) end) },
  eq = { exact = true, of = mask(function(x, c) return ops.equal(c, x) end) },
  ne = { exact = true, of = mask(function(x, c) return x:ne(c) end) },
  maximum = { of = function(x, c) return ops.maximum(x, c) end },
  minimum = { of = function(x, c) return ops.minimum(c, x) end },
  neg = { exact = true, alone = true, of = function(x) return -x end },
  abs = { exact = true, alone = true, of = function_of(ops.abs) },
  exp = { alone = true, of = function_of(ops.exp) },
  log = { alone = true, of = function_of(ops.log) },
  sqrt = { alone = true, of = function_of(ops.sqrt) },
  rsqrt = { alone = true, of = function_of(ops.rsqrt) },
  tanh = { alone = true, of = function_of(ops.tanh) },
  sigmoid = { alone = true, of = function_of(ops.sigmoid) },
  softplus = { alone = true, of = function_of(ops.softplus) },
  relu = { alone = true, of = function_of(ops.relu) },
  silu = { alone = true, of = function_of(ops.silu) },
  sigmoid_by_hand = { alone = true, of = function(x) return 1 / ((-x):exp() + 1) end },
}

local names = {}
for name in pairs(special_numbers.all) do names[#names + 1] = name end
table.sort(names)

local function count_of(case, numbers) return case.alone and 1 or #numbers end

---The results of a case for each of the numbers.
function special_numbers.rows(case, x, numbers)
  local rows = {}
  for i = 1, count_of(case, numbers) do rows[i] = case.of(x, numbers[i]):tolist() end
  return rows
end

-- Rows i, i + 1, ... of a list of rows.
local function part(rows, first, n)
  local list = {}
  for i = 1, n do list[i] = rows[first + i - 1] end
  return list
end

---What plans give: for each case y, and the gradient dx of sum(y), a row for each number.
---@param device string
---@param elements number[]
---@param numbers number[]
---@return table<string, { y: number[][], dx: number[][] }>
function special_numbers.planned(device, elements, numbers)
  local Net = ms.module "Net"
  function Net:init()
    for _, name in ipairs(names) do
      self[name] = ms.parameter { count_of(special_numbers.all[name], numbers), #elements, init = "zeros" }
    end
  end
  function Net:forward(_)
    local rows = {}
    for _, name in ipairs(names) do
      local case = special_numbers.all[name]
      for i = 1, count_of(case, numbers) do rows[#rows + 1] = case.of(self[name]:index(i - 1), numbers[i]) end
    end
    return ops.stack(rows, 0)
  end
  local model = Net()
  ms.fully_shard(model, { mesh = ms.init_device_mesh(device, "1", { "shard" }) })
  local train = ms.trainer {
    model = model, optimizer = ms.optim.sgd { lr = 0 },
    forward = function(net, batch) return (batch.all and net(batch.x) or net.add):sum() end,
  }
  local x = ms.tensor { { 1 } }
  train:step { x = x } -- gradients can be read after a first step
  for _, name in ipairs(names) do
    local rows = {}
    for i = 1, count_of(special_numbers.all[name], numbers) do rows[i] = elements end
    train:set_parameter(name, ms.tensor(rows))
  end
  -- The sum is not a number, which a step refuses once it has the gradients.
  assert(not pcall(train.step, train, { x = x, all = x }))
  local y, results, first = model(x):tolist(), {}, 1
  for _, name in ipairs(names) do
    local n = count_of(special_numbers.all[name], numbers)
    results[name] = { y = part(y, first, n), dx = train:gradient(name):tolist() }
    first = first + n
  end
  return results
end

return special_numbers
