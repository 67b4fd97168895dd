-- Tables of relative errors: how far predictions are from measurements, by group.
--
-- An error is predicted / measured - 1, in percent. Means, medians and percentiles are of its absolute value; the bias
-- is the mean with its sign: positive if predictions are too high.

local errors = {}

---@class moonshard.bench.Errors
---@field n integer
---@field mean number
---@field median number
---@field p90 number
---@field max number
---@field bias number

-- The value that a part of the sorted list does not exceed, interpolated between neighbours.
local function percentile(sorted, part)
  local place = 1 + part * (#sorted - 1)
  local below = math.floor(place)
  local above = math.min(below + 1, #sorted)
  return sorted[below] + (place - below) * (sorted[above] - sorted[below])
end

---@param list { predicted: number, measured: number }[]
---@return moonshard.bench.Errors
function errors.summarize(list)
  if #list == 0 then error("no errors to summarize: the list is empty", 2) end
  local sizes, total, signed = {}, 0, 0
  for i, row in ipairs(list) do
    local relative = 100 * (row.predicted / row.measured - 1)
    sizes[i] = math.abs(relative)
    total, signed = total + sizes[i], signed + relative
  end
  table.sort(sizes)
  return {
    n = #list, mean = total / #list, median = percentile(sizes, 0.5), p90 = percentile(sizes, 0.9),
    max = sizes[#sizes], bias = signed / #list,
  }
end

local COLUMNS = {
  { "n", "%d" }, { "mean", "%.1f" }, { "median", "%.1f" }, { "p90", "%.1f" }, { "max", "%.1f" }, { "bias", "%+.1f" },
}

local function cells_of(row)
  local cells = { row.name }
  for i, column in ipairs(COLUMNS) do cells[i + 1] = column[2]:format(row.errors[column[1]]) end
  return cells
end

---Prints a table with a row for each summary, in percent.
---@param title string
---@param rows { name: string, errors: moonshard.bench.Errors }[]
function errors.print(title, rows)
  local lines = { { "error, %" } }
  for i, column in ipairs(COLUMNS) do lines[1][i + 1] = column[1] end
  for _, row in ipairs(rows) do lines[#lines + 1] = cells_of(row) end
  local widths = {}
  for _, cells in ipairs(lines) do
    for i, cell in ipairs(cells) do widths[i] = math.max(widths[i] or 0, #cell) end
  end
  io.write(title, "\n")
  for _, cells in ipairs(lines) do
    local text = {}
    for i, cell in ipairs(cells) do
      local padding = (" "):rep(widths[i] - #cell)
      text[i] = i == 1 and cell .. padding or padding .. cell
    end
    io.write("  ", table.concat(text, "  "), "\n")
  end
end

return errors
