-- Sums of products of two tensors by the letters of their axes, as in NumPy: ms.ops.einsum("bhid,bhjd->bhij", q, k).
-- They become one product of matrices. Letters are in groups: of both operands and the result (one product for each),
-- of one operand and the result (rows, columns), of both operands only (what the product sums over), and of one operand
-- only, which is summed first. Operands whose groups are in order, or with the last two swapped, are not copied.

local any_axes = require("moonshard.tensor.axes")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local tensor = require("moonshard.tensor.class")

local einsum, methods = {}, {}
einsum.methods = methods

-- ---- letters ----------------------------------------------------------------------------------------------------

local function refuse(text, why, ...)
  errors.invalid('einsum "%s": ' .. why, text, ...)
end

-- The letters of an operand or of the result, each once.
local function letters_of(text, part)
  local seen = {}
  for letter in part:gmatch(".") do
    if not letter:match("%a") then
      refuse(text, "'%s' is no letter: name each axis by a letter, as in \"ij,jk->ik\"", letter)
    end
    if seen[letter] then
      refuse(text, "%s is twice in \"%s\", which would be a diagonal: give the axes different letters", letter, part)
    end
    seen[letter] = true
  end
  return part, seen
end

-- Without "->" the result has the letters of one operand only, in the order of the alphabet.
local function implied(a, b)
  local once = {}
  for letter in (a .. b):gmatch(".") do
    if not (a:find(letter, 1, true) and b:find(letter, 1, true)) then once[#once + 1] = letter end
  end
  table.sort(once)
  return table.concat(once)
end

-- a, b and the result as strings of letters.
local function parse(text)
  if type(text) ~= "string" then
    errors.invalid('einsum takes a text and two tensors, einsum("ij,jk->ik", a, b), not %s', options.describe(text))
  end
  local a, b, out = text:gsub("%s", ""):match("^([^,>%-]*),([^,>%-]*)(.*)$")
  if not a then refuse(text, "it must have two operands, as in \"ij,jk->ik\": of one tensor, use sum or permute") end
  if out:find(",", 1, true) then refuse(text, "it has more than two operands: multiply two of them at a time") end
  local asked = out:match("^%->(.*)$")
  if not asked and out ~= "" then refuse(text, "after the operands there must be -> and the result's letters") end
  letters_of(text, a)
  letters_of(text, b)
  out = letters_of(text, asked or implied(a, b))
  for letter in out:gmatch(".") do
    if not (a .. b):find(letter, 1, true) then
      refuse(text, "the result's %s is in no operand: leave it out, or give it to an axis of \"%s\" or \"%s\"", letter,
        a, b)
    end
  end
  return a, b, out
end

local function common(letters, ...)
  local kept = letters
  for _, other in ipairs({ ... }) do
    kept = kept:gsub(".", function(letter) return other:find(letter, 1, true) and letter or "" end)
  end
  return kept
end

local function without(letters, other)
  return (letters:gsub(".", function(letter) return other:find(letter, 1, true) and "" or letter end))
end

-- ---- tensors ----------------------------------------------------------------------------------------------------

-- Notes the sizes of an operand's letters.
local function take_sizes(text, which, x, letters, sizes)
  if #letters ~= #x.shape then
    errors.raise("MS_ESHAPE", 'einsum "%s": the %s operand is %s, of %d axes, but "%s" has %d letters: give each axis '
        .. "one", text, which, tensor.shape_text(x.shape), #x.shape, letters, #letters)
  end
  for axis, size in ipairs(x.shape) do
    local letter = letters:sub(axis, axis)
    if sizes[letter] and sizes[letter] ~= size then
      errors.raise("MS_ESHAPE", 'einsum "%s": %s is %d in the first operand and %d in the second, %s: axes with one '
        .. "letter must be equal, so give one of them another letter, or other tensors", text, letter, sizes[letter],
        size, tensor.shape_text(x.shape))
    end
    sizes[letter] = size
  end
end

-- Sums over letters that only this operand has.
local function sum_own(x, letters, others)
  local axes = {}
  for axis = 1, #letters do
    if not others:find(letters:sub(axis, axis), 1, true) then axes[#axes + 1] = axis - 1 end
  end
  if #axes == 0 then return x, letters end
  return any_axes.methods.sum(x, axes), common(letters, others)
end

local function reorder(x, from, to)
  if from == to then return x end
  local axes = {}
  for place = 1, #to do axes[place] = from:find(to:sub(place, place), 1, true) - 1 end
  return ops.transpose(x, { axes = axes })
end

local function shape_of(letters, sizes)
  local shape = {}
  for letter in letters:gmatch(".") do shape[#shape + 1] = sizes[letter] end
  return shape
end

local function count(letters, sizes)
  local product = 1
  for letter in letters:gmatch(".") do product = product * sizes[letter] end
  return product
end

-- An operand as matrices [each, first, second], without `each` if it has no letters, and whether the two are swapped.
local function matrices(x, letters, each, first, second, sizes)
  local swapped = letters ~= each .. first .. second and letters == each .. second .. first
  x = reorder(x, letters, swapped and letters or each .. first .. second)
  local shape = { count(first, sizes), count(second, sizes) }
  if swapped then shape[1], shape[2] = shape[2], shape[1] end
  if each ~= "" then table.insert(shape, 1, count(each, sizes)) end
  return ops.reshape(x, { shape = shape }), swapped
end

-- Nothing is summed: a product of elements, with axes of size 1 where an operand lacks a letter.
local function multiply(a, of_a, b, of_b, out, sizes)
  local function spread(x, letters)
    local own, shape = common(out, letters), {}
    for letter in out:gmatch(".") do shape[#shape + 1] = letters:find(letter, 1, true) and sizes[letter] or 1 end
    return ops.reshape(reorder(x, letters, own), { shape = shape })
  end
  return ops.mul(spread(a, of_a), spread(b, of_b))
end

-- An operand as a tensor of the trace.
local function operand(text, which, x)
  if parameter.is(x) and context.trace then return context.trace:parameter(x) end
  if tensor.is(x) then return x end
  return refuse(text, "the %s operand must be a tensor, not %s", which, options.describe(x))
end

-- a and b as matrices, their product, and the axes of that in the order of the result. `summed`: what it sums over.
local function multiply_matrices(a, of_a, b, of_b, out, summed, sizes)
  local each = common(out, of_a, of_b)
  local rows, columns = common(without(out, of_b), of_a), common(without(out, of_a), of_b)
  if out == each .. columns .. rows and rows ~= "" then
    a, of_a, b, of_b, rows, columns = b, of_b, a, of_a, columns, rows
  end
  local left, left_swapped = matrices(a, of_a, each, rows, summed, sizes)
  local right, right_swapped = matrices(b, of_b, each, summed, columns, sizes)
  local product = ops.matmul(left, right, { trans_a = left_swapped, trans_b = right_swapped })
  local letters = each .. rows .. columns
  return reorder(ops.reshape(product, { shape = shape_of(letters, sizes) }), letters, out)
end

---The sum of products of two tensors by the letters of their axes: einsum("bij,bjk->bik", a, b). Without "->" the
---result has the letters that occur once, in the order of the alphabet.
---@param text string
---@param a moonshard.Tensor
---@param b moonshard.Tensor
---@return moonshard.Tensor
function ops.einsum(text, a, b)
  local of_a, of_b, out = parse(text)
  local sizes = {}
  a, b = operand(text, "first", a), operand(text, "second", b)
  take_sizes(text, "first", a, of_a, sizes)
  take_sizes(text, "second", b, of_b, sizes)
  a, of_a = sum_own(a, of_a, of_b .. out)
  b, of_b = sum_own(b, of_b, of_a .. out)
  local summed = without(common(of_a, of_b), out)
  if summed == "" then return multiply(a, of_a, b, of_b, out, sizes) end
  return multiply_matrices(a, of_a, b, of_b, out, summed, sizes)
end

---einsum with this tensor as the first of the two.
---@param text string
---@param other moonshard.Tensor
---@return moonshard.Tensor
function methods:einsum(text, other) return ops.einsum(text, self, other) end
ops.composed.einsum = { takes = "a text and 2 inputs",
  doc = 'sums of products by letters of axes: einsum("bij,bjk->bik", a, b), as one product of matrices' }

return einsum
