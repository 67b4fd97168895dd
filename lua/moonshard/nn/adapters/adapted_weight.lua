-- A layer's weight with its adapter in it, as merging and saving need it: W + s B A, for DoRA with the lengths of its
-- rows, and the bias with that of the adapter.
--
-- Every element is summed in double precision and in one order, so that it has the same bits wherever it is computed.

local ffi = require("ffi")

local adapted_weight = {}

local AT_ONCE = 2 ^ 20 -- elements of W that are read at a time

---@class moonshard.AdapterValues
---@field inputs integer
---@field outputs integer
---@field rank integer
---@field alpha number
---@field down ffi.cdata* float *, A
---@field up ffi.cdata* float *, B
---@field magnitude ffi.cdata*? float [outputs], for DoRA
---@field lengths ffi.cdata*? double [outputs], of the rows of W + s B A, for DoRA (adapted_weight.measure)

-- sums[i] = a row of B times columns column + i of A
local function add_row(sums, row, down, inputs, rank, column, count)
  ffi.fill(sums, 8 * count)
  for k = 0, rank - 1 do
    local factor, from = row[k], down + k * inputs + column
    for i = 0, count - 1 do sums[i] = sums[i] + factor * from[i] end
  end
end

-- Calls visit(row, done, run, sums) for the part of each row that elements of a weight have.
local function by_rows(first, count, of, visit)
  local inputs, rank, sums, done = of.inputs, of.rank, ffi.new("double[?]", of.inputs), 0
  local down, up = ffi.cast("const float *", of.down), ffi.cast("const float *", of.up)
  while done < count do
    local column = (first + done) % inputs
    local run, row = math.min(inputs - column, count - done), (first + done - column) / inputs
    add_row(sums, up + row * rank, down, inputs, rank, column, run)
    visit(row, done, run, sums)
    done = done + run
  end
end

---Puts an adapter into elements of a weight [out, in].
---@param values ffi.cdata* float *, elements first to first + count - 1 of the flattened weight
---@param first number
---@param count number
---@param of moonshard.AdapterValues
function adapted_weight.add(values, first, count, of)
  local scale = of.alpha / of.rank
  by_rows(first, count, of, function(row, done, run, sums)
    local longer = 1
    if of.magnitude then longer = of.lengths[row] > 0 and of.magnitude[row] / of.lengths[row] or 0 end
    for i = 0, run - 1 do values[done + i] = longer * (values[done + i] + scale * sums[i]) end
  end)
end

---The lengths of the rows of W + s B A, for which all of W is read once.
---@param of moonshard.AdapterValues gets the field lengths
---@param read fun(first: number, count: number): ffi.cdata*? elements of W as float *, valid until the next call; nil
---  on ranks that only take part in reading
function adapted_weight.measure(of, read)
  local scale, squares = of.alpha / of.rank, ffi.new("double[?]", of.outputs)
  for first = 0, of.outputs * of.inputs - 1, AT_ONCE do
    local count = math.min(AT_ONCE, of.outputs * of.inputs - first)
    local values = read(first, count)
    if values ~= nil then
      by_rows(first, count, of, function(row, done, run, sums)
        local sum = squares[row]
        for i = 0, run - 1 do
          local element = values[done + i] + scale * sums[i]
          sum = sum + element * element
        end
        squares[row] = sum
      end)
    end
  end
  for row = 0, of.outputs - 1 do squares[row] = math.sqrt(squares[row]) end
  of.lengths = squares
end

---Adds the bias of an adapter to elements of its layer's.
---@param values ffi.cdata* float *
---@param first number
---@param count number
---@param bias ffi.cdata* float [outputs], the adapter's
---@param scale number alpha / rank
function adapted_weight.add_bias(values, first, count, bias, scale)
  for i = 0, count - 1 do values[i] = values[i] + scale * bias[first + i] end
end

return adapted_weight
