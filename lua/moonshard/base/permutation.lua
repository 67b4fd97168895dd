-- A keyed permutation of 0..n-1, computed per element, without a table unless n is small: the order of samples.
--
-- Element i of epoch e depends only on (seed, e, i, n), so every rank of every world computes the same order without
-- communication. Method: a balanced Feistel network of six rounds over the smallest even number of bits that holds n,
-- repeated while its result is outside 0..n-1 (cycle walking; Black & Rogaway, "Ciphers with Arbitrary Finite
-- Domains", 2002). The round function is the finaliser of MurmurHash3 (Appleby), keyed by round.

local bit = require "bit"
local band, bxor, lshift, rshift, tobit = bit.band, bit.bxor, bit.lshift, bit.rshift, bit.tobit

local permutation = {}

local ROUNDS = 6

--- a * b mod 2^32. Splitting a into halves keeps each product below 2^48, exact in a double.
local function multiply(a, b)
  return tobit(band(a, 0xffff) * b + lshift(tobit(rshift(a, 16) * b), 16))
end

--- Mixes 32 bits; a bijection (MurmurHash3's fmix32).
---@param word integer
---@return integer mixed a signed 32-bit integer
local function mix(word)
  word = multiply(bxor(word, rshift(word, 16)), 0x85ebca6b)
  word = multiply(bxor(word, rshift(word, 13)), 0xc2b2ae35)
  return bxor(word, rshift(word, 16))
end

permutation.mix = mix

--- 32 bits that depend on every bit of the seed (up to 2^53) and on each of the other numbers.
---@param seed number
---@param ... number
---@return integer
function permutation.key(seed, ...)
  local key = mix(bxor(tobit(seed % 2 ^ 32), 0x6d6f6f6e))
  key = mix(bxor(key, tobit(math.floor(seed / 2 ^ 32) % 2 ^ 32)))
  for i = 1, select("#", ...) do
    key = mix(tobit(key + multiply(tobit(select(i, ...) % 2 ^ 32), 0x9e3779b1) + i))
  end
  return key
end

local SMALL = 256

-- A network over few bits has few permutations, so that of few elements is a table (Fisher & Yates).
local function shuffled(n, seed, epoch)
  local order = {}
  for i = 0, n - 1 do
    local j = permutation.key(seed, epoch, i) % 2 ^ 32 % (i + 1)
    order[i] = order[j]
    order[j] = i
  end
  return function(index) return order[index] end
end

--- The permutation as a function of the index.
---@param n integer elements, 1 to 2^32
---@param seed number
---@param epoch integer
---@return fun(index: integer): integer both 0-based
function permutation.new(n, seed, epoch)
  if n <= SMALL then return shuffled(n, seed, epoch) end
  local half = 1
  while 4 ^ half < n do
    half = half + 1
  end
  local mask = lshift(1, half) - 1
  local keys = {}
  for round = 1, ROUNDS do
    keys[round] = permutation.key(seed, epoch, round)
  end
  local shift = 2 ^ half

  return function(index)
    repeat
      local left, right = math.floor(index / shift), index % shift
      for round = 1, ROUNDS do
        left, right = right, bxor(left, band(mix(bxor(right, keys[round])), mask))
      end
      index = left * shift + right
    until index < n
    return index
  end
end

return permutation
