-- The points of a sweep: every combination of the values in `over`, then the explicit ones, except those that `where`
-- leaves out; and the order in which they run.
--
-- A point consists of the settings that the recipe receives as key=value, in a fixed order (mesh first, then by name),
-- and the number of ranks that it runs on: `ranks` of the point or the sweep, or the product of its mesh's sizes.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local lists = require("moonshard.base.checks.lists")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")

local grid = {}

---@class moonshard.SweepPoint
---@field key string identifies the point: "mesh=1x4 batch=8"
---@field values table<string, string|number|boolean> by setting, lists as text
---@field order string[] names of the settings, in order
---@field ranks integer
---@field index integer in the list, from 1

local MAX_POINTS = 10000

-- Mesh first, because most sweeps are about it.
local function in_order(keys)
  table.sort(keys, function(a, b)
    if (a == "mesh") ~= (b == "mesh") then return a == "mesh" end
    return a < b
  end)
  return keys
end

---@param key any
---@param who string "over", "points[2]", "settings"
local function check_key(key, who)
  if type(key) ~= "string" or not key:match("^[%a_][%w_]*$") then
    errors.invalid("ms.sweep: %s: %s is not the name of a setting: write { mesh = ... }", who, options.describe(key))
  end
end

-- Converts lists to the notation of the command line: "1x4" for a mesh, "0.9,0.95" for others.
local function read_value(key, value, who)
  local kind = type(value)
  if kind == "string" or kind == "boolean" then return value end
  if kind == "number" and value - value == 0 then return value end
  local texts = {}
  for i, item in ipairs(kind == "table" and value or {}) do texts[i] = grid.text(read_value(key, item, who)) end
  if #texts == 0 then
    errors.invalid("ms.sweep: %s: a value of %s must be a number, text, true or false, or a list, not %s", who, key,
      options.describe(value))
  end
  return table.concat(texts, key == "mesh" and "x" or ",")
end

---A value in the notation of the command line.
---@param value string|number|boolean
---@return string
function grid.text(value)
  return type(value) == "number" and json.encode(value) or tostring(value)
end

---Checks the names and values of settings, and converts lists to text.
---@param given table<string, any>
---@param who string for messages
---@return table<string, string|number|boolean>
function grid.settings(given, who)
  local values = {}
  lists.check_fields("ms.sweep: " .. who, given)
  for key, value in pairs(given) do
    check_key(key, who)
    values[key] = read_value(key, value, who)
  end
  return values
end

local function sizes_product(point, mesh)
  local product = 1
  for part in (mesh .. "x"):gmatch("(.-)x") do
    local size = tonumber(part)
    if not size or size % 1 ~= 0 then return nil end
    if size < 1 then
      errors.invalid("ms.sweep: point %s: %s in the mesh leaves the number of ranks unknown: give ranks, or a mesh of "
        .. "positive sizes", point.key, part)
    end
    product = product * size
  end
  return product
end

-- The setting whose name is a slip of the pen from mesh.
local function like_mesh(values)
  local names = {}
  for name in pairs(values) do names[#names + 1] = name end
  return nearest.name("mesh", names, 2)
end

local function ranks_of(point, ranks, settings)
  local given = point.values.ranks or ranks
  local mesh = point.values.mesh or settings and settings.mesh
  if not given and mesh then given = sizes_product(point, grid.text(mesh)) end
  if type(given) ~= "number" or given < 1 or given % 1 ~= 0 then
    local near = like_mesh(point.values)
    errors.invalid("ms.sweep: point %s: the number of ranks is unknown: %sgive ranks, or a mesh like \"2x2\"",
      point.key, near and ("setting %s: did you mean mesh? "):format(near) or "")
  end
  return given
end

local function new_point(values, sweep)
  local point, keys, texts = { values = values }, {}, {}
  for key in pairs(values) do keys[#keys + 1] = key end
  point.order = in_order(keys)
  for i, key in ipairs(keys) do texts[i] = key .. "=" .. grid.text(values[key]) end
  point.key = table.concat(texts, " ")
  point.ranks = ranks_of(point, sweep.ranks, sweep.settings)
  return point
end

local function check_over(over)
  local keys, count = {}, 1
  lists.check_fields("ms.sweep: over", over)
  for key, list in pairs(over) do
    check_key(key, "over")
    if type(list) ~= "table" or #list == 0 then
      errors.invalid("ms.sweep: over.%s must be a list of values, not %s", key,
        type(list) == "table" and "an empty one" or options.describe(list))
    end
    keys[#keys + 1], count = key, count * #list
  end
  if count > MAX_POINTS then errors.invalid("ms.sweep: %d points exceed the limit of %d", count, MAX_POINTS) end
  return in_order(keys)
end

-- Every combination; the last key varies fastest.
local function combine(over, keys, i, values, add)
  if i > #keys then
    local copy = {}
    for key, value in pairs(values) do copy[key] = value end
    return add(copy)
  end
  for _, value in ipairs(over[keys[i]]) do
    values[keys[i]] = read_value(keys[i], value, "over")
    combine(over, keys, i + 1, values, add)
  end
end

local function admits(where, point)
  if not where then return true end
  local copy = { ranks = point.ranks }
  for key, value in pairs(point.values) do copy[key] = value end
  local keeps = where(copy)
  if type(keeps) ~= "boolean" then
    errors.invalid("ms.sweep: where must return true or false for every point, and returned %s for %s",
      options.describe(keeps), point.key)
  end
  return keeps
end

-- What varies: settings, and conditions of the machine.
local function everything(sweep)
  local all = {}
  for key, list in pairs(sweep.conditions or {}) do all[key] = list end
  for key, list in pairs(sweep.over or {}) do
    if all[key] ~= nil then errors.invalid("ms.sweep: %s is in over and in conditions: remove one of the two", key) end
    all[key] = list
  end
  return all
end

---The points of a sweep, without duplicates.
---@param sweep { over: table?, conditions: table?, points: table[]?, where: function?, ranks: integer? }
---@return moonshard.SweepPoint[] points
---@return integer left_out number of points that `where` left out
function grid.points(sweep)
  local points, known, left_out = {}, {}, 0
  local function add(values)
    local point = new_point(values, sweep)
    if known[point.key] then return end
    known[point.key] = true
    if admits(sweep.where, point) then
      points[#points + 1] = point
      point.index = #points
    else
      left_out = left_out + 1
    end
  end
  local over = everything(sweep)
  if next(over) then combine(over, check_over(over), 1, {}, add) end
  for key in pairs(sweep.points or {}) do
    if type(key) ~= "number" then
      errors.invalid("ms.sweep: points must be a list of tables of settings, points = { { %s = ... } }", tostring(key))
    end
  end
  for i, given in ipairs(sweep.points or {}) do
    local who = ("points[%d]"):format(i)
    if type(given) ~= "table" or not next(given) then
      errors.invalid("ms.sweep: %s must be a table of settings, not %s", who, options.describe(given))
    end
    add(grid.settings(given, who))
  end
  return points, left_out
end

---All settings that appear in any point, in order.
---@param points moonshard.SweepPoint[]
---@return string[]
function grid.columns(points)
  local seen, keys = {}, {}
  for _, point in ipairs(points) do
    for key in pairs(point.values) do
      if not seen[key] then
        seen[key] = true
        keys[#keys + 1] = key
      end
    end
  end
  return in_order(keys)
end

---The command-line arguments that pass a point's settings to the recipe.
---@param settings table<string, any> of every point
---@param point moonshard.SweepPoint
---@param conditions table<string, any>? by the names that are no settings of the recipe
---@return string[]
function grid.arguments(settings, point, conditions)
  local all, keys, list = {}, {}, {}
  for key, value in pairs(settings) do all[key] = value end
  for key, value in pairs(point.values) do all[key] = value end
  all.ranks = nil
  for key in pairs(conditions or {}) do all[key] = nil end
  for key in pairs(all) do keys[#keys + 1] = key end
  for i, key in ipairs(in_order(keys)) do list[i] = key .. "=" .. grid.text(all[key]) end
  return list
end

-- ---- order ----------------------------------------------------------------------------------------------------------

-- Park and Miller's generator: reproducible on every machine, and good enough for shuffling.
local function draw(state)
  state.value = state.value * 16807 % 2147483647
  return state.value
end

local function shuffle(list, state)
  for i = #list, 2, -1 do
    local j = draw(state) % i + 1
    list[i], list[j] = list[j], list[i]
  end
  return list
end

---The order of the runs: in rounds of one run per point, each round shuffled. A machine's speed drifts with temperature
---and other load. If the runs of one point were consecutive, or points sorted by a setting, the drift would look like
---an effect of the point. The seed makes the order reproducible.
---@param count integer points
---@param rounds integer runs of each
---@param seed integer? nil: every round in the given order
---@return integer[][] rounds of indices of points
function grid.rounds(count, rounds, seed)
  local list, state = {}, { value = ((seed or 0) % 2147483646) + 1 }
  for round = 1, rounds do
    list[round] = {}
    for i = 1, count do list[round][i] = i end
    if seed then shuffle(list[round], state) end
  end
  return list
end

return grid
