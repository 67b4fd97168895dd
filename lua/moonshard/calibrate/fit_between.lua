-- Turns what was measured between hosts into constants of links: a start, the rate of a node, and the processor time
-- that its bytes take.

local least_squares = require("moonshard.calibrate.least_squares")

local fit_between = {}

local KINDS = { "all_gather", "reduce_scatter", "all_reduce" }
local FASTEST = 1e12 -- bytes/s of a kind whose bytes took no time that could be told from its start
-- Kinds whose rates differ less share one: that much is noise.
local ALIKE = 1.1

---One record of each layer, with the fastest of its rounds: other programs can only slow one down.
---@param records moonshard.BetweenRecord[]
---@return moonshard.BetweenRecord[]
function fit_between.fastest(records)
  local by, order = {}, {}
  for _, record in ipairs(records) do
    local found = by[record.number]
    if not found then
      by[record.number], order[#order + 1] = record, record
    else
      found.processor = math.min(found.processor, record.processor)
      for i, collective in ipairs(found.collectives) do
        collective.seconds = math.min(collective.seconds, record.collectives[i].seconds)
      end
    end
  end
  return order
end

-- Each collective's time without what the same would take inside a node, a start for each kind, and bytes: of each kind
-- (n: 3), or of all (n: 1).
local function rows_of(records, links, n)
  local rows = {}
  for _, record in ipairs(records) do
    for _, collective in ipairs(record.collectives) do
      for k, kind in ipairs(KINDS) do
        if collective.kind == kind then
          local inside = links[k].start + collective.inside / links[k].inside
          local row = { collective.seconds - inside, whole = collective.seconds }
          for i = 1, #KINDS + n do row[1 + i] = 0 end
          row[1 + k], row[1 + #KINDS + math.min(k, n)] = 1, collective.wire
          rows[#rows + 1] = row
        end
      end
    end
  end
  return rows
end

local function error_of(rows, x)
  local sum = 0
  for _, row in ipairs(rows) do
    local rest = row[1]
    for i, value in ipairs(x) do rest = rest - row[1 + i] * value end
    sum = sum + math.abs(rest) / row.whole
  end
  return sum / math.max(1, #rows)
end

local function rate(per_byte) return math.min(FASTEST, 1 / per_byte) end

local function are_alike(x)
  local least, most = math.huge, 0
  for k in ipairs(KINDS) do
    local of = rate(x[#KINDS + k])
    least, most = math.min(least, of), math.max(most, of)
  end
  return most <= ALIKE * least
end

-- The processor time of a byte: that of a step is a part for each collective and one for its bytes.
local function processor_of(records)
  local rows = {}
  for _, record in ipairs(records) do
    local bytes = 0
    for _, collective in ipairs(record.collectives) do bytes = bytes + collective.wire end
    if record.processor > 0 then
      rows[#rows + 1] = { record.processor, #record.collectives, bytes, whole = record.processor }
    end
  end
  return least_squares(rows, 2)[2]
end

---Adds to the links inside a node what they are between nodes.
---@param records moonshard.BetweenRecord[]
---@param links moonshard.CalibrationLink[] of calibration_fit.links
---@return { rail: number, off: number, collectives: integer } rail: bytes/s of a node, of its fastest kind; off: the
---mean relative error of the fit
function fit_between.add(records, links)
  local rows, n = rows_of(records, links, #KINDS), #KINDS
  local x = least_squares(rows, 2 * #KINDS)
  if are_alike(x) then
    rows, n = rows_of(records, links, 1), 1
    x = least_squares(rows, #KINDS + 1)
  end
  local processor, rail = processor_of(records), 0
  for k, link in ipairs(links) do
    link.start_between, link.between = x[k], rate(x[#KINDS + math.min(k, n)])
    link.processor = processor
    rail = math.max(rail, link.between)
  end
  return { rail = rail, off = error_of(rows, x), collectives = #rows }
end

return fit_between
