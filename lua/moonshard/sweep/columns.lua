-- Columns of a table for the terminal: settings, numbers, and bytes in a common unit. Each row is a record of a sweep.

local grid = require("moonshard.sweep.grid")
local text_lines = require("moonshard.base.text.text_lines")

local columns = {}

---@class moonshard.TextColumn
---@field title string
---@field of ("point"|"metrics")? a setting, or a metric of the recipe
---@field left boolean? align to the left
---@field [integer] string the cell of each row

-- The largest unit in which the largest value is at least 1.
local function unit_of(largest)
  local names, i = { "B", "KiB", "MiB", "GiB" }, 1
  while largest >= 1024 and i < #names do
    largest, i = largest / 1024, i + 1
  end
  return names[i], 1024 ^ (i - 1)
end

---One column per setting, aligned to the left.
---@param records { point: table<string, any> }[]
---@param keys string[]
---@return moonshard.TextColumn[]
function columns.settings(records, keys)
  local list = {}
  for i, key in ipairs(keys) do
    list[i] = { title = key, of = "point", left = true }
    for _, record in ipairs(records) do
      local value = record.point[key]
      table.insert(list[i], value == nil and "" or grid.text(value))
    end
  end
  return list
end

---@generic T
---@param records T[]
---@param title string
---@param format string of string.format
---@param value_of fun(record: T): number? nil: the record has no such number
---@return moonshard.TextColumn
function columns.numbers(records, title, format, value_of)
  local column = { title = title }
  for i, record in ipairs(records) do
    local value = value_of(record)
    column[i] = value and format:format(value) or "-"
  end
  return column
end

---Columns of bytes in one unit, the largest in which the largest value is at least 1.
---@generic T
---@param records T[]
---@param names string[] one column per name
---@param titles table<string, string> titles that differ from the names
---@param value_of fun(record: T, name: string): number? returns bytes; nil: the record has none of this name
---@return moonshard.TextColumn[]
---@return string unit
function columns.bytes(records, names, titles, value_of)
  local largest, list = 0, {}
  for _, record in ipairs(records) do
    for _, name in ipairs(names) do largest = math.max(largest, value_of(record, name) or 0) end
  end
  local unit, size = unit_of(largest)
  for i, name in ipairs(names) do
    list[i] = columns.numbers(records, titles[name] or name, unit == "B" and "%d" or "%.1f", function(record)
      local bytes = value_of(record, name)
      return bytes and bytes / size
    end)
  end
  return list, unit
end

---Gives columns that would have the title of another one the name that results.json has for them: "metrics.k" next to a
---setting k, "point.loss" next to the loss. A reader by titles would see one of the two.
---@param list { title: string, of: ("point"|"metrics")? }[]
---@return table list
function columns.tell_apart(list)
  local taken = {}
  for _, column in ipairs(list) do
    if not column.of then taken[column.title] = true end
  end
  for _, of in ipairs({ "point", "metrics" }) do
    for _, column in ipairs(list) do
      if column.of == of then
        while taken[column.title] do column.title = of .. "." .. column.title end
        taken[column.title] = true
      end
    end
  end
  return list
end

---The lines of a table; the first one has the titles.
---@param list moonshard.TextColumn[]
---@param count integer number of rows
---@return string[]
function columns.lines(list, count)
  local lines = {}
  for row = 0, count do
    local cells = {}
    for i, column in ipairs(list) do
      local width = #column.title
      for j = 1, count do width = math.max(width, #column[j]) end
      local text = row == 0 and column.title or column[row]
      cells[i] = column.left and text .. (" "):rep(width - #text) or (" "):rep(width - #text) .. text
    end
    lines[#lines + 1] = text_lines.trim_end(table.concat(cells, "  "))
  end
  return lines
end

return columns
