-- A table of what measured.lua printed: prices, measured steps and their errors, and how many pairs of configurations
-- whose measured steps differ by more than 5 % the prices put in the right order.
--
--   luajit tests/bench/price/measured_table.lua FILE...     with LUA_PATH as tests/run.sh sets it

local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
package.path = folder .. "?.lua;" .. package.path
local errors = require("error_table")
local json = require("moonshard.base.text.json")

local DIFFERENT = 1.05

local rows = {}
for _, path in ipairs(arg) do
  for line in io.lines(path) do
    if line:find("^{") then rows[#rows + 1] = assert(json.decode(line)) end
  end
end

for _, row in ipairs(rows) do
  print(("%-62s price %8.2f ms  measured %8.2f ms  %+6.1f %%"):format(row.name, row.predicted, row.measured,
    100 * (row.predicted / row.measured - 1)))
end

local by, groups = {}, {}
for _, row in ipairs(rows) do
  local mesh = row.name:match("^%S+")
  if not by[mesh] then
    by[mesh] = {}
    groups[#groups + 1] = mesh
  end
  table.insert(by[mesh], row)
end
local summaries = {}
for i, mesh in ipairs(groups) do summaries[i] = { name = mesh, errors = errors.summarize(by[mesh]) } end
summaries[#summaries + 1] = { name = "all", errors = errors.summarize(rows) }
errors.print("prices of steps on this machine", summaries)

local right, pairs_of = 0, 0
for i, a in ipairs(rows) do
  for k = i + 1, #rows do
    local b = rows[k]
    if math.max(a.measured, b.measured) > DIFFERENT * math.min(a.measured, b.measured) then
      pairs_of = pairs_of + 1
      if (a.measured < b.measured) == (a.predicted < b.predicted) then right = right + 1 end
    end
  end
end
print(("\nof %d pairs that differ by more than 5 %%, prices order %d (%.1f %%) as they are"):format(pairs_of, right,
  100 * right / math.max(1, pairs_of)))
