-- A scaling study as text: a table of numbers of nodes and shapes, which shape wins where, and what the closed forms of
-- guides say about it.

local progress = require("moonshard.base.text.progress")
local text_columns = require("moonshard.base.text.text_columns")

local report = {}

---@class moonshard.Scaling
---@field title string
---@field cluster moonshard.Cluster
---@field settings table<string, any>
---@field shapes string[]
---@field nodes integer[]
---@field curve moonshard.ScalingRecord[] every shape on every number of nodes
---@field models { setting: string, values: any[], records: moonshard.ScalingRecord[] }? of the heat map
---@field answered boolean? the curve is complete
---@field tradeoffs { records: moonshard.ScalingRecord[] }? at the most nodes

---The record of a list with these fields, or nil.
---@param records moonshard.ScalingRecord[]
---@param wanted table<string, any>
---@return moonshard.ScalingRecord?
function report.find(records, wanted)
  for _, record in ipairs(records) do
    local same = true
    for key, value in pairs(wanted) do same = same and record[key] == value end
    if same then return record end
  end
end

---The fastest record that fits, or nil.
---@param records moonshard.ScalingRecord[]
---@return moonshard.ScalingRecord?
function report.fastest(records)
  local best
  for _, record in ipairs(records) do
    if record.fits and (not best or record.per_rank > best.per_rank) then best = record end
  end
  return best
end

---The records of one number of nodes.
---@param records moonshard.ScalingRecord[]
---@param nodes integer
---@return moonshard.ScalingRecord[]
function report.on_nodes(records, nodes)
  local list = {}
  for _, record in ipairs(records) do
    if record.nodes == nodes then list[#list + 1] = record end
  end
  return list
end

---"1 node", "16 nodes".
---@param nodes integer
---@return string
function report.count_nodes(nodes) return nodes == 1 and "1 node" or nodes .. " nodes" end

-- "412" tokens/s a rank, in brackets where the memory does not suffice, with a star for the fastest that fits.
local function cell(record, best)
  if not record then return "" end
  if record.refused then return "refused" end
  local text = ("%.0f"):format(record.per_rank)
  if not record.fits then return "(" .. text .. ")" end
  return record == best and text .. " *" or text .. "  "
end

local function curve_rows(self)
  local rows = { { "nodes", "ranks" } }
  for _, shape in ipairs(self.shapes) do table.insert(rows[1], shape .. "  ") end
  for _, nodes in ipairs(self.nodes) do
    local best = report.fastest(report.on_nodes(self.curve, nodes))
    local row = { tostring(nodes), tostring(nodes * self.cluster.ranks_per_node) }
    for i, shape in ipairs(self.shapes) do
      row[i + 2] = cell(report.find(self.curve, { nodes = nodes, shape = shape }), best)
    end
    rows[#rows + 1] = row
  end
  return rows
end

---@class moonshard.Crossover
---@field nodes integer the first number of nodes on which `to` is faster
---@field from string
---@field to string

---Where the fastest shape changes from one number of nodes to the next.
---@param self moonshard.Scaling
---@return moonshard.Crossover[]
function report.crossovers(self)
  local list, before = {}, nil
  for _, nodes in ipairs(self.nodes) do
    local best = report.fastest(report.on_nodes(self.curve, nodes))
    if best and before and best.shape ~= before then
      list[#list + 1] = { nodes = nodes, from = before, to = best.shape }
    end
    before = best and best.shape or before
  end
  return list
end

-- The mesh that the closed forms prefer: the least communication among the shapes that they know.
local function guides_choice(records)
  local best
  for _, record in ipairs(records) do
    if record.guide and record.fits and (not best or record.guide < best.guide) then best = record end
  end
  return best
end

local function guide_rows(self)
  local rows = { { "nodes", "fastest", "mesh", "step ms", "exposed ms", "by bytes alone", "ms" } }
  for _, nodes in ipairs(self.nodes) do
    local records = report.on_nodes(self.curve, nodes)
    local best, guide = report.fastest(records), guides_choice(records)
    local exposed = 0
    for _, seconds in pairs(best and best.waiting or {}) do exposed = exposed + seconds end
    rows[#rows + 1] = best and { tostring(nodes), best.shape, best.mesh, ("%.1f"):format(1e3 * best.step),
      ("%.1f"):format(1e3 * exposed), guide and guide.shape or "", guide and ("%.1f"):format(1e3 * guide.guide) or "" }
      or { tostring(nodes), "none fits" }
  end
  return rows
end

local function described(record)
  return ("%s, mesh=%s, %s per rank, %s of %s"):format(record.shape, record.mesh, progress.rate(record.per_rank),
    progress.size(record.bytes), progress.size(record.room))
end

-- Adds what is the fastest of some records, and the shapes that fit and are as fast, as far as prices tell.
local function add_fastest(self, list, where, records)
  local best, tied = report.fastest(records), {}
  if not best then return end
  list[#list + 1] = ("%s: %s"):format(where, described(best))
  for _, record in ipairs(records) do
    if record ~= best and record.fits and record.per_rank >= (1 - self.cluster:tie()) * best.per_rank then
      tied[#tied + 1] = ("%s, %s per rank"):format(record.shape, progress.rate(record.per_rank))
    end
  end
  if #tied == 0 then return end
  list[#list + 1] = ("a tie with %s: prices cannot decide below %.3g %%"):format(table.concat(tied, ", and "),
    100 * self.cluster:tie())
end

-- The fastest record that fits for each value of a setting, in the order of the values.
local function fastest_by(records, setting)
  local by_value, values, list = {}, {}, {}
  for _, record in ipairs(records) do
    local value = record.settings[setting]
    if type(value) == "number" and not by_value[value] then
      by_value[value] = {}
      values[#values + 1] = value
    end
    if by_value[value] then table.insert(by_value[value], record) end
  end
  table.sort(values)
  for _, value in ipairs(values) do
    local best = report.fastest(by_value[value])
    if best then list[#list + 1] = { value = value, best = best, records = by_value[value] } end
  end
  return list
end

---Whether another shape is the fastest with a larger batch, as a sentence, by the records of the tradeoffs.
---@param self moonshard.Scaling
---@return string? nil: the same shape is the fastest, as far as prices tell, or nothing varies the batch
function report.batch_matters(self)
  local list = self.tradeoffs and fastest_by(self.tradeoffs.records, "batch") or {}
  local first = list[1]
  for i = #list, 2, -1 do
    local here, same = list[i], nil
    for _, record in ipairs(here.records) do
      local of_shape = record.fits and record.shape == first.best.shape
      if of_shape and (not same or record.per_rank > same.per_rank) then same = record end
    end
    if here.best.shape ~= first.best.shape
      and (not same or same.per_rank < (1 - self.cluster:tie()) * here.best.per_rank) then
      return ("a larger batch changes the answer: on %s with batch=%g, %s is the fastest (%s per rank), with batch=%g "
        .. "%s (%s)"):format(report.count_nodes(here.best.nodes), here.value, here.best.shape,
          progress.rate(here.best.per_rank), first.value, first.best.shape, progress.rate(first.best.per_rank))
    end
  end
end

---Which shape to take, in sentences: first whether that depends on the batch; where the fastest changes, and the
---fastest on the most nodes; FSDP or HSDP, too, where a shape with a tensor dimension is the fastest; and which tie.
---@param self moonshard.Scaling
---@return string[]
function report.answers(self)
  local list, last = {}, self.nodes[#self.nodes]
  local nodes = report.count_nodes(last)
  list[1] = report.batch_matters(self)
  for _, crossover in ipairs(report.crossovers(self)) do
    list[#list + 1] = ("from %s on, %s is faster than %s"):format(report.count_nodes(crossover.nodes), crossover.to,
      crossover.from)
  end
  local records, plain = report.on_nodes(self.curve, last), {}
  local best = report.fastest(records)
  if not best then list[#list + 1] = ("on %s no shape fits into the memory"):format(nodes) end
  add_fastest(self, list, "on " .. nodes, records)
  for _, record in ipairs(records) do
    if record.tensor == 1 then plain[#plain + 1] = record end
  end
  if best and best.tensor > 1 then
    add_fastest(self, list, ("on %s without a tensor dimension"):format(nodes), plain)
  end
  return list
end

local function answer(self)
  return "  " .. table.concat(report.answers(self), "\n  ") .. "\n"
end

-- Each reason once, with the first point that it is of.
local function refusals(self)
  local lines, seen = {}, {}
  for _, records in ipairs({ self.curve, self.models and self.models.records or {},
    self.tradeoffs and self.tradeoffs.records or {} }) do
    for _, record in ipairs(records) do
      if record.refused and not seen[record.refused] then
        lines[#lines + 1] = ("  refused: %s on %s: %s"):format(record.shape, report.count_nodes(record.nodes),
          record.refused)
        seen[record.refused] = true
      end
    end
  end
  return #lines > 0 and table.concat(lines, "\n") .. "\n" or ""
end

local function accuracy(self)
  local part = self.cluster.accuracy
  return part and (" +-%.0f %%"):format(100 * part) or ""
end

---The table of the curve alone, of which records can be missing.
---@param self moonshard.Scaling
---@return string
function report.curve(self)
  return ("%s\n\ntokens/s per rank on %s%s; *: the fastest that fits, (): needs more memory than a rank has\n"):format(
    self.title, self.cluster.name, accuracy(self)) .. text_columns.of(curve_rows(self), 0)
end

---@param self moonshard.Scaling
---@return string
function report.text(self)
  return table.concat({
    report.curve(self), "\n", answer(self), refusals(self), "\n",
    "the fastest, and what bytes over bandwidth alone would choose (no latency, no overlap)\n",
    text_columns.of(guide_rows(self), 0),
  })
end

return report
