-- Prints a table of matrix products, attention or products of experts for `make bench-gpu`: a row per product, TFLOP/s
-- per implementation.
--
--   luajit tests/gpu/matmul_table.lua LINES [OURS THEIRS]
--
-- LINES: the output of bench_matmul and peer_matmul.py, or the same of attention or experts. OURS and THEIRS: the names
-- to compare in the last column.

local json = require("moonshard.base.text.json")

local OURS, THEIRS = arg[2] or "timed", arg[3] or "torch"
local products, names, measured = {}, {}, {}

local function note(list, key, value)
  if not list[key] then
    list[key] = value
    list[#list + 1] = key
  end
end

for line in io.lines(arg[1]) do
  local m = json.decode(line)
  if m then
    note(products, m.product, true)
    note(names, m.name, true)
    measured[m.product .. m.name] = m
  end
end

local head = { ("%-32s"):format("TFLOP/s") }
for _, name in ipairs(names) do head[#head + 1] = ("%12s"):format(name) end
print(table.concat(head) .. (names[THEIRS] and "  vs " .. THEIRS or ""))
for _, product in ipairs(products) do
  local row = { ("%-32s"):format(product) }
  for _, name in ipairs(names) do
    local m = measured[product .. name]
    row[#row + 1] = ("%12s"):format(m and ("%.1f"):format(m.tflops) or "-")
  end
  local ours, theirs = measured[product .. OURS], measured[product .. THEIRS]
  print(table.concat(row) .. (ours and theirs and ("%9.2fx"):format(theirs.us / ours.us) or ""))
end
