-- FSDP, HSDP or DDP over two hosts: are prices right about which is fastest, at every speed of the link?
--
--   make two-hosts && make bench-price PART=two_hosts        as root: two_hosts makes hosts and measures, this prices
--
-- Reads what the sweep recipes/fsdp_vs_hsdp.lua has measured, and this machine's description, which `make bench-price
-- PART=measured` or `moonshard calibrate` writes. The two hosts share this machine, so each has half of its processors;
-- their link is what tc made of it.

local errors = dofile("tests/bench/price/error_table.lua")
local json = require("moonshard.base.json")

local build, machine = arg[1] or "build", arg[2] or (arg[1] or "build") .. "/price/this-machine.lua"
local RESULTS = build .. "/sweep/fsdp_vs_hsdp/results.json"
local RATES = { ["1gbit"] = "1 Gbit/s", ["200mbit"] = "200 Mbit/s", ["100mbit"] = "100 Mbit/s",
  ["500mbit"] = "500 Mbit/s", ["2gbit"] = "2 Gbit/s" }

-- TCP's headers take 5 % of the link, and what a message takes besides its bytes is a round trip through two processes.
local DESCRIPTION = [[
return {
  about = "two hosts on this machine, a link of %s between them",
  extends = %q,
  ranks_per_node = { 2, "make two-hosts" },
  device = { cores = { %g, "half of this machine's" } },
  network = { rails = { 1, "one virtual link" }, rail = { %q, "tc" } },
  links = {
    all_gather = %s,
    reduce_scatter = %s,
    all_reduce = %s,
  },
}
]]
local LINK = [[{ start_between = { "300 us", "assumed" }, step_between = { "0 us", "assumed" },
      between = { "95 %", "headers of TCP" } }]]

local function read(path, what)
  local file = io.open(path, "rb")
  if not file then
    io.stderr:write(("two_hosts: there is no %s: %s\n"):format(path, what))
    os.exit(2)
  end
  local text = file:read("*a")
  file:close()
  return text
end

local function describe(link, cores)
  local path = ("%s/price/two-hosts-%s.lua"):format(build, link)
  local absolute = machine:sub(1, 1) == "/" and machine or os.getenv("PWD") .. "/" .. machine
  local file = assert(io.open(path, "w"))
  file:write(DESCRIPTION:format(RATES[link], absolute, cores, RATES[link], LINK, LINK, LINK))
  file:close()
  return path
end

local function price(cluster, record)
  local point = record.point
  local command = ("%s/release/moonshard price recipes/hybrid.lua -n %d --cluster %s --json mesh=%s dtype=%s "
    .. "accumulate=%d shard_optimizer=%s"):format(build, record.ranks, cluster, point.mesh, point.dtype,
    point.accumulate, tostring(point.shard_optimizer))
  local pipe = assert(io.popen(command))
  local priced = assert(json.decode(pipe:read("*a")))
  pipe:close()
  return priced.step_ms
end

-- Lists by what the meshes of a comparison have in common.
local function compared(records)
  local groups, order = {}, {}
  for _, record in ipairs(records) do
    local point = record.point
    if record.status == "ok" and RATES[point.link] then
      local key = ("%s, %s, %d micro-batch%s"):format(point.link, point.dtype, point.accumulate,
        point.accumulate == 1 and "" or "es")
      if not groups[key] then
        groups[key] = {}
        order[#order + 1] = key
      end
      table.insert(groups[key], record)
    end
  end
  table.sort(order)
  return groups, order
end

local function name_of(point) return point.mesh .. (point.shard_optimizer and " sharded optimizer" or "") end

local function fastest(group, key)
  local best
  for _, record in ipairs(group) do
    if not best or record[key] < best[key] then best = record end
  end
  return best
end

local cores = tonumber(read(machine, "run make bench-price PART=measured first"):match("cores = { ([%d.]+)")) / 2
local groups, order = compared(assert(json.decode(read(RESULTS, "run make two-hosts first"))).points)
local all, right = {}, 0
for _, key in ipairs(order) do
  local cluster = describe(key:match("^[^,]+"), cores)
  print(key)
  for _, record in ipairs(groups[key]) do
    record.priced_ms = price(cluster, record)
    all[#all + 1] = { predicted = record.priced_ms, measured = record.step_ms }
    print(("  %-22s priced %8.1f ms, measured %8.1f ms, %+.1f %%"):format(name_of(record.point), record.priced_ms,
      record.step_ms, 100 * (record.priced_ms / record.step_ms - 1)))
  end
  local predicted, measured = fastest(groups[key], "priced_ms"), fastest(groups[key], "step_ms")
  -- A tie is right, too: the chosen one is within 5 % of the fastest.
  local is_right = predicted.step_ms <= 1.05 * measured.step_ms
  right = right + (is_right and 1 or 0)
  print(("  fastest: priced %s, measured %s: %s"):format(name_of(predicted.point), name_of(measured.point),
    is_right and "right" or "wrong"))
end
errors.print("steps over two hosts", { { name = "all", errors = errors.summarize(all) } })
print(("the fastest mesh: right, or within 5 %% of it, in %d of %d comparisons"):format(right, #order))
