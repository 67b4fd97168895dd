-- Turns what was measured between hosts into constants of links: a start, the rate of a node, and the processor time
-- that its bytes take.
--
-- Networks, and what limits them, often let a burst pass before they slow down, so collectives of middle sizes can be
-- faster than their bytes and the rate of large ones say. Training moves megabytes without a pause. So the rate is that
-- at which time grows from large collectives to the largest, and the start is that of small ones.

local calibration_fit = require("moonshard.calibrate.fit")
local errors = require("moonshard.base.error")
local least_squares = require("moonshard.calibrate.least_squares")

local fit_between = {}

local KINDS, FASTEST = calibration_fit.KINDS, calibration_fit.FASTEST
local LARGE = 1 / 8 -- of the bytes of the largest
local SMALL = 8192 -- bytes
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

-- The collectives of each kind; seconds: without what the same would take inside a node.
local function by_kind(records, links)
  local found, kind_of = {}, {}
  for k, kind in ipairs(KINDS) do found[k], kind_of[kind] = {}, k end
  for _, record in ipairs(records) do
    for _, collective in ipairs(record.collectives) do
      local k = kind_of[collective.kind]
      local inside = links[k].start + collective.inside / links[k].inside
      table.insert(found[k], { bytes = collective.wire, seconds = collective.seconds - inside,
        whole = collective.seconds })
    end
  end
  return found
end

local function largest_of(list)
  local largest = 0
  for _, one in ipairs(list) do largest = math.max(largest, one.bytes) end
  return largest
end

-- The slope of the line through the large ones, by least squares of relative errors: above / below.
local function slope(list)
  local largest, sum, bytes, seconds, above, below = largest_of(list), 0, 0, 0, 0, 0
  local function each(visit)
    for _, one in ipairs(list) do
      if one.bytes >= LARGE * largest then visit(one, 1 / one.whole ^ 2) end
    end
  end
  each(function(one, weight)
    sum, bytes, seconds = sum + weight, bytes + weight * one.bytes, seconds + weight * one.seconds
  end)
  each(function(one, weight)
    local more = one.bytes - bytes / sum
    above, below = above + weight * more * (one.seconds - seconds / sum), below + weight * more ^ 2
  end)
  return above, below
end

-- Seconds per byte of each kind, or one for all that are alike.
local function per_byte(found)
  local list, above, below, least, most = {}, 0, 0, math.huge, 0
  for k, kind in ipairs(KINDS) do
    local own_above, own_below = slope(found[k])
    if own_below == 0 then
      errors.raise("MS_EUNSUPPORTED", "calibrate: the hosts moved only %d bytes of %s in time, and a rate needs two "
        .. "large sizes: the links are too slow to be measured; write `network` and the links' `between` by hand",
        largest_of(found[k]), kind)
    end
    list[k] = math.max(1 / FASTEST, own_above / own_below)
    above, below = above + own_above, below + own_below
    least, most = math.min(least, list[k]), math.max(most, list[k])
  end
  for k in ipairs(KINDS) do
    if most <= ALIKE * least then list[k] = above / below end
  end
  return list
end

local function start_of(list, byte)
  local rows = {}
  for _, one in ipairs(list) do
    if one.bytes <= SMALL then rows[#rows + 1] = { one.seconds - byte * one.bytes, 1, whole = one.whole } end
  end
  return least_squares(rows, 1)[1]
end

-- How many of a kind are large, and how many small; the sum of the relative errors of large ones.
local function count(list, start, byte)
  local largest, large, small, sum = largest_of(list), 0, 0, 0
  for _, one in ipairs(list) do
    if one.bytes <= SMALL then small = small + 1 end
    if one.bytes >= LARGE * largest then
      large, sum = large + 1, sum + math.abs(start + byte * one.bytes - one.seconds) / one.whole
    end
  end
  return large, small, sum
end

-- The processor time of a byte of each kind. That of a step is a part for each collective and one for its bytes; a step
-- that gathers also scatters as many bytes, so these two share one.
local function processor_of(records)
  local rows = {}
  for _, record in ipairs(records) do
    local row = { record.processor, #record.collectives, 0, 0, whole = record.processor }
    for _, collective in ipairs(record.collectives) do
      local at = collective.kind == "all_reduce" and 4 or 3
      row[at] = row[at] + collective.wire
    end
    if record.processor > 0 then rows[#rows + 1] = row end
  end
  local x = least_squares(rows, 3)
  return { x[2], x[2], x[3] }
end

---Adds to the links inside a node what they are between nodes.
---@param records moonshard.BetweenRecord[]
---@param links moonshard.CalibrationLink[] of calibration_fit.links
---@return { rail: number, off: number, large: integer, small: integer } rail: bytes/s of a node, of its fastest kind;
---large, small: numbers of collectives that tell of rates and of starts; off: the mean relative error of large ones
function fit_between.add(records, links)
  local found, processor = by_kind(records, links), processor_of(records)
  local bytes, fitted = per_byte(found), { rail = 0, off = 0, large = 0, small = 0 }
  for k, link in ipairs(links) do
    link.start_between, link.between, link.processor = start_of(found[k], bytes[k]), 1 / bytes[k], processor[k]
    local large, small, sum = count(found[k], link.start_between, bytes[k])
    fitted.rail = math.max(fitted.rail, link.between)
    fitted.large, fitted.small, fitted.off = fitted.large + large, fitted.small + small, fitted.off + sum
  end
  fitted.off = fitted.off / math.max(1, fitted.large)
  return fitted
end

return fit_between
