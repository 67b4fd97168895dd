-- Reads what a process gave to the emulated device (MOONSHARD_EMULATE_LOG, tests/emulated_cuda/emulated_log.h), and
-- finds accesses of the same bytes that nothing orders: vector clocks over the streams, joined where a stream waits for
-- an event. What the host saw meanwhile orders nothing here, so what is found does not depend on how fast anything was.

local device_log = {}

---@class DeviceAccess
---@field first integer the elementary ranges of the log that it touches
---@field last integer
---@field writes boolean

---@class DeviceEntry
---@field what "work"|"record"|"wait"|"stream"
---@field stream integer
---@field name string? of work
---@field event integer? of records and waits
---@field priority integer? of streams
---@field access DeviceAccess[]? of work

local function parse(line)
  local what, stream, name, ranges = line:match("^(%l+) (%d+) (%S+)(.*)$")
  assert(what, "not a line of a device's log: " .. line)
  local entry = { what = what, stream = tonumber(stream) }
  if what == "stream" then
    entry.priority = tonumber(name)
    return entry
  end
  if what ~= "work" then
    entry.event = tonumber(name)
    return entry
  end
  entry.name, entry.access = name, {}
  for kind, at, bytes in ranges:gmatch(" (%l) (%d+) (%d+)") do
    table.insert(entry.access, { begin = tonumber(at), stop = tonumber(at) + tonumber(bytes), writes = kind == "w" })
  end
  return entry
end

-- Numbers the ranges between any two addresses at which an access begins or ends.
local function number_ranges(entries)
  local bounds, seen, place = {}, {}, {}
  for _, entry in ipairs(entries) do
    for _, access in ipairs(entry.access or {}) do
      for _, at in ipairs({ access.begin, access.stop }) do
        if not seen[at] then
          seen[at] = true
          bounds[#bounds + 1] = at
        end
      end
    end
  end
  table.sort(bounds)
  for i, at in ipairs(bounds) do place[at] = i end
  for _, entry in ipairs(entries) do
    for _, access in ipairs(entry.access or {}) do
      access.first, access.last = place[access.begin], place[access.stop] - 1
    end
  end
end

---@param path string the file of a process
---@return DeviceEntry[]
function device_log.read(path)
  local entries = {}
  for line in io.lines(path) do -- what is said of products and communicators is in no stream's order
    if not (line:find("^product ") or line:find("^communicator ")) then entries[#entries + 1] = parse(line) end
  end
  number_ranges(entries)
  return entries
end

local function join(into, clock)
  for stream, time in pairs(clock) do
    if time > (into[stream] or 0) then into[stream] = time end
  end
end

local function is_ordered(clock, access)
  return not access or access.stream == clock.stream or access.time <= (clock.of[access.stream] or 0)
end

---The first two pieces of work that touch the same bytes, one of them writing, on streams that no event has ordered.
---@param entries DeviceEntry[]
---@param without integer? a wait that is left out
---@return DeviceEntry? before, DeviceEntry? after
function device_log.unordered(entries, without)
  local clocks, recorded, written, read = {}, {}, {}, {}
  for i, entry in ipairs(entries) do
    local clock = clocks[entry.stream] or {}
    clocks[entry.stream] = clock
    if entry.what == "record" then
      recorded[entry.event] = {}
      join(recorded[entry.event], clock)
    elseif entry.what == "wait" and i ~= without then
      join(clock, recorded[entry.event] or {})
    elseif entry.what == "work" then
      clock[entry.stream] = (clock[entry.stream] or 0) + 1
      local now = { stream = entry.stream, of = clock }
      local mine = { stream = entry.stream, time = clock[entry.stream], entry = entry }
      for _, access in ipairs(entry.access) do
        for at = access.first, access.last do
          if not is_ordered(now, written[at]) then return written[at].entry, entry end
          local readers = read[at]
          if access.writes then
            for _, reader in pairs(readers or {}) do
              if not is_ordered(now, reader) then return reader.entry, entry end
            end
            written[at], read[at] = mine, nil
          else
            readers = readers or {}
            readers[entry.stream], read[at] = mine, readers
          end
        end
      end
    end
  end
end

return device_log
