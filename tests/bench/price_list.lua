-- A long list of prices: Llama 8B on every mesh of 2,880 ranks with at most 32 ranks of `context` and 8 of `tensor`,
-- which are 1,016. Prints JSON lines with the seconds that the command takes and the processor time of one price, which
-- depends less on what else runs, and the targets that they are to keep:
--
--   luajit tests/bench/price_list.lua build            with LUA_PATH as tests/run.sh sets it

local json = require("moonshard.base.text.json")

local RANKS, MAX_CONTEXT, MAX_TENSOR = 2880, 32, 8
local TARGET, TARGET_OF_ONE = 10, 20 -- s for all, on two cores; ms of processor time for one
local HEADS_OF_KEYS = 8 -- which the ranks of `tensor` divide

local function divisors(number, most)
  local list = {}
  for d = 1, math.min(number, most) do
    if number % d == 0 then list[#list + 1] = d end
  end
  return list
end

local meshes = {}
for _, tensor in ipairs(divisors(RANKS, MAX_TENSOR)) do
  for _, context in ipairs(HEADS_OF_KEYS % tensor == 0 and divisors(RANKS / tensor, MAX_CONTEXT) or {}) do
    local rest = RANKS / tensor / context
    for _, shard in ipairs(divisors(rest, rest)) do
      meshes[#meshes + 1] = ("%dx%dx%dx%d"):format(rest / shard, shard, context, tensor)
    end
  end
end

-- The length of a sequence is one that each number of ranks of `context` divides into two blocks a rank.
local command = ("%s/release/moonshard price recipes/llama.lua -n %d --cluster h100x8-400g --json --mesh-list %s "
  .. "size=8B seq=5760 batch=1"):format(arg[1] or "build", RANKS, table.concat(meshes, ","))
local pipe = assert(io.popen(("date +%%s.%%N; %s; date +%%s.%%N; times"):format(command)))
local lines = {}
for line in pipe:lines() do lines[#lines + 1] = line end
pipe:close()
local records = assert(json.decode(lines[2]))
assert(#records == #meshes and not records[#records].refused, "not every mesh has a price")
local minutes, seconds = lines[#lines]:match("^(%d+)m([%d.]+)s") -- of the children's user time
print(('{"name":"%d prices of a Llama 8B","unit":"s","ours":%.3g,"target":%g}'):format(#meshes, lines[3] - lines[1],
  TARGET))
print(('{"name":"a price of a list, processor time","unit":"ms","ours":%.3g,"target":%g}'):format(
  1e3 * (60 * minutes + seconds) / #meshes, TARGET_OF_ONE))
