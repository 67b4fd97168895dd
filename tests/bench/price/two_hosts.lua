-- FSDP, HSDP or DDP over two hosts: are prices right about which is fastest, at every speed of the link?
--
--   make two-hosts && make bench-price PART=two_hosts        as root: two_hosts makes hosts and measures, this prices
--
-- Reads what the sweep recipes/fsdp_vs_hsdp.lua has measured, and a description that `moonshard calibrate --hosts` made
-- over the same hosts at one speed of their link (two_hosts.sh). For another speed only the description's network
-- changes. The two hosts share this machine, so each has half of its processors.

local errors = dofile("tests/bench/price/error_table.lua")
local cluster = require("moonshard.price.cluster")
local json = require("moonshard.base.text.json")

local build, described, calibrated_at = arg[1], arg[2], arg[3]
local RESULTS = build .. "/sweep/fsdp_vs_hsdp/results.json"
-- bits/s, by what tc calls them.
local RATES = { ["50mbit"] = 5e7, ["100mbit"] = 1e8, ["200mbit"] = 2e8, ["500mbit"] = 5e8, ["1gbit"] = 1e9,
  ["2gbit"] = 2e9 }

local DESCRIPTION = [[
return {
  about = "two hosts on this machine, a link of %s between them",
  extends = %q,
  device = { cores = { %g, "half of this machine's" } },
  network = { rail = { "%.6g GB/s", %q } },
}
]]

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

local function constant(of, path)
  for _, one in ipairs(of.constants) do
    if one.path == path then return one.value end
  end
end

-- The description for a speed of the link: the calibrated rate changes as the speed does.
local function describe(link)
  local path = ("%s/price/two-hosts-%s.lua"):format(build, link)
  local absolute = described:sub(1, 1) == "/" and described or os.getenv("PWD") .. "/" .. described
  local measured = cluster.load(described)
  local rate = constant(measured, "network.rail") * RATES[link] / RATES[calibrated_at]
  local source = ("measured at %s, changed as tc changes the link"):format(calibrated_at)
  local file = assert(io.open(path, "w"))
  file:write(DESCRIPTION:format(link, absolute, constant(measured, "device.cores") / 2, 1e-9 * rate, source))
  file:close()
  return path
end

local function price(path, record)
  local point = record.point
  local command = ("%s/release/moonshard price recipes/hybrid.lua -n %d --cluster %s --json mesh=%s dtype=%s "
    .. "accumulate=%d shard_optimizer=%s"):format(build, record.ranks, path, point.mesh, point.dtype,
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

-- The fastest repeat of a point: other programs can only slow one down.
local function fastest_ms(record) return record.step_ms * record.tokens_per_s / record.tokens_per_s_max end

local function name_of(point) return point.mesh .. (point.shard_optimizer and " sharded optimizer" or "") end

local function fastest(group, key)
  local best
  for _, record in ipairs(group) do
    if not best or record[key] < best[key] then best = record end
  end
  return best
end

if not RATES[calibrated_at] then
  io.stderr:write(("two_hosts: %s is no speed of a link here\n"):format(tostring(calibrated_at)))
  os.exit(2)
end
local groups, order = compared(assert(json.decode(read(RESULTS, "run make two-hosts first"))).points)
local all, by_link, links, right = {}, {}, {}, 0
for _, key in ipairs(order) do
  local link = key:match("^[^,]+")
  local path = describe(link)
  if not by_link[link] then
    by_link[link] = {}
    links[#links + 1] = link
  end
  print(key)
  for _, record in ipairs(groups[key]) do
    record.priced_ms, record.measured_ms = price(path, record), fastest_ms(record)
    local one = { predicted = record.priced_ms, measured = record.measured_ms }
    table.insert(all, one)
    table.insert(by_link[link], one)
    print(("  %-22s priced %8.1f ms, measured %8.1f ms, %+.1f %%"):format(name_of(record.point), record.priced_ms,
      record.measured_ms, 100 * (record.priced_ms / record.measured_ms - 1)))
  end
  local predicted, measured = fastest(groups[key], "priced_ms"), fastest(groups[key], "measured_ms")
  -- A tie is right, too: the chosen one is within 5 % of the fastest.
  local is_right = predicted.measured_ms <= 1.05 * measured.measured_ms
  right = right + (is_right and 1 or 0)
  print(("  fastest: priced %s, measured %s: %s"):format(name_of(predicted.point), name_of(measured.point),
    is_right and "right" or "wrong"))
end
local rows = {}
for i, link in ipairs(links) do rows[i] = { name = link, errors = errors.summarize(by_link[link]) } end
rows[#rows + 1] = { name = "all", errors = errors.summarize(all) }
errors.print(("steps over two hosts, calibrated at %s"):format(calibrated_at), rows)
print(("the fastest mesh: right, or within 5 %% of it, in %d of %d comparisons"):format(right, #order))
