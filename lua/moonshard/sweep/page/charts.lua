-- Rows of points in the charts of a page, with their labels and groups.
--
-- Rows have their point's number in the table of all points, so that the page's script can sort and group them. Without
-- scripts they are in the sweep's order, grouped by the first setting.

local grid = require("moonshard.sweep.grid")

local charts = {}

-- The mesh, or the first setting if the mesh does not vary.
local function group_key(self) return self.columns[1] end

---The settings in which some records differ.
---@param columns string[] settings
---@param records { point: table<string, any> }[]
---@return string[]
function charts.varying(columns, records)
  local list = {}
  for _, key in ipairs(columns) do
    local differ = false
    for _, record in ipairs(records) do differ = differ or record.point[key] ~= records[1].point[key] end
    if differ then list[#list + 1] = key end
  end
  return list
end

---What distinguishes a record from others.
---@param columns string[] settings in which they differ
---@param record { key: string, point: table<string, any> }
---@param left_out string? a setting that is named elsewhere
---@return string "batch=4  reshard=true"
function charts.label_of(columns, record, left_out)
  local parts = {}
  for _, key in ipairs(columns) do
    local value = record.point[key]
    if key ~= left_out and value ~= nil then parts[#parts + 1] = key .. "=" .. grid.text(value) end
  end
  return #parts > 0 and table.concat(parts, "  ") or record.key
end

---Rows in groups, in the order of each group's first record, with what distinguishes them as labels. If the points
---differ in only one setting, each would be a group, so all are in one group without a title.
---@param self { columns: string[], records: { point: table<string, any> }[] }
---@param wanted fun(record: table): boolean|number|nil whether the record has a row
---@param row_of fun(record: table): moonshard.BarRow a row without its label, or with what follows it
---@return { title: string?, rows: moonshard.BarRow[] }[]
function charts.group_rows(self, wanted, row_of)
  local key, groups, by_value, shown = group_key(self), {}, {}, {}
  local several = #self.columns > 1
  for _, record in ipairs(self.records) do
    if wanted(record) then shown[#shown + 1] = record end
  end
  local columns = charts.varying(self.columns, shown)
  for number, record in ipairs(self.records) do
    if wanted(record) then
      local value = several and record.point[key] ~= nil and key .. " " .. grid.text(record.point[key]) or "others"
      if not by_value[value] then
        by_value[value] = { title = several and value or nil, rows = {} }
        groups[#groups + 1] = by_value[value]
      end
      local row = row_of(record)
      row.number, row.label = number, charts.label_of(columns, record, several and key or nil) .. (row.label or "")
      table.insert(by_value[value].rows, row)
    end
  end
  return groups
end

return charts
