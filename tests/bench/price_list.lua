-- A long list of prices: Llama 8B on every mesh of 2,880 ranks with at most 32 ranks of `context` and 8 of `tensor`,
-- which are 1,016. Prints one JSON line with the seconds that the command takes, and the target that it is to keep:
--
--   luajit tests/bench/price_list.lua build            with LUA_PATH as tests/run.sh sets it

local json = require("moonshard.base.json")

local RANKS, MOST_CONTEXT, MOST_TENSOR, TARGET = 2880, 32, 8, 10
local HEADS_OF_KEYS = 8 -- which the ranks of `tensor` divide

local function divisors(number, most)
  local list = {}
  for d = 1, math.min(number, most) do
    if number % d == 0 then list[#list + 1] = d end
  end
  return list
end

local meshes = {}
for _, tensor in ipairs(divisors(RANKS, MOST_TENSOR)) do
  for _, context in ipairs(HEADS_OF_KEYS % tensor == 0 and divisors(RANKS / tensor, MOST_CONTEXT) or {}) do
    local rest = RANKS / tensor / context
    for _, shard in ipairs(divisors(rest, rest)) do
      meshes[#meshes + 1] = ("%dx%dx%dx%d"):format(rest / shard, shard, context, tensor)
    end
  end
end

-- The length of a sequence is one that each number of ranks of `context` divides into two blocks a rank.
local command = ("%s/release/moonshard price recipes/llama.lua -n %d --cluster h100x8-400g --json --mesh-list %s "
  .. "size=8B seq=5760 batch=1"):format(arg[1] or "build", RANKS, table.concat(meshes, ","))
local pipe = assert(io.popen(("date +%%s.%%N; %s; date +%%s.%%N"):format(command)))
local lines = {}
for line in pipe:lines() do lines[#lines + 1] = line end
pipe:close()
local records = assert(json.decode(lines[2]))
assert(#records == #meshes and not records[#records].refused, "not every mesh has a price")
print(('{"name":"%d prices of a Llama 8B","unit":"s","ours":%.3g,"target":%g}'):format(#meshes, lines[3] - lines[1],
  TARGET))
