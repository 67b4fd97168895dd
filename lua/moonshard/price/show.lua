-- A price as text for people and as a table for JSON, and many prices as one table.

local attention_note = require("moonshard.price.attention_note")
local price = require("moonshard.price.price")
local progress = require("moonshard.base.text.progress")
local text_columns = require("moonshard.base.text.text_columns")

local show = {}

local TOP = 8 -- rows of a list
local size = progress.size

local function ms(seconds) return ("%.2f"):format(1e3 * seconds) end

-- How often something runs in a step; on average over steps if not all have it.
local function times(count) return count % 1 == 0 and ("%d"):format(count) or ("%.3g"):format(count) end

local function percent(part, whole) return ("%.1f %%"):format(100 * part / math.max(whole, 1e-300)) end

-- Three digits, never as a power of ten: a table's neighbours must be comparable at a glance.
local function digits(number)
  return number >= 100 and ("%.0f"):format(number) or ("%.3g"):format(number)
end

local function share(fraction) return fraction and ("%.1f %%"):format(100 * fraction) or "-" end

-- Names without the indices of lists: what the layers of a model have in common.
local function family_of(name) return (("." .. name):gsub("%.%d+%f[%.%z]", ".*"):sub(2)) end

-- ---- one price --------------------------------------------------------------------------------------------------

local function memory_line(self)
  local cluster, room = self.cluster, self.room
  if self.room == self.limit then
    return ("%s: %s per rank, of the %s of the trainer's memory_limit"):format(self.fits and "FITS" or "DOES NOT FIT",
      size(self.bytes), size(room))
  end
  local taken = cluster.reserved > 0 and (" of %s, less %s for the rest"):format(size(cluster.memory),
    size(cluster.reserved)) or ""
  local verdict = self.fits and ("FITS: %s per rank, %s free"):format(size(self.bytes), size(room - self.bytes))
    or ("DOES NOT FIT: %s per rank, %s too much"):format(size(self.bytes), size(self.bytes - room))
  return ("%s (a rank has %s%s)"):format(verdict, size(room), taken)
end

local function utilisation_line(self)
  if not self.mfu then
    return ("no MFU: the cluster describes no peak of %s, in which products compute"):format(self.dtype)
  end
  return ("MFU %s (%s, of %.4g TFLOP/s in %s), HFU %s (what kernels compute)"):format(share(self.mfu),
    self.mfu_counts, self.cluster:rank_peak(self.dtype) / 1e12, self.dtype, share(self.hfu))
end

-- With a delay the plan of a step that synchronises begins the sums in its phase FIRST, which is not averaged.
local function sync_line(self)
  if not self.sync then return nil end
  local delayed = self.sync.delay > 0
    and "; the sums of its delay count in every step, so this is the most that it takes" or ""
  return ("  local SGD: an average step, of which one in %d synchronises (--trace shows one that does)%s"):format(
    self.sync.every, delayed)
end

local function head_lines(self, details)
  local mesh, cluster = self.plan.mesh, self.cluster
  local lines = {
    ("price: mesh %s on %s, %s"):format(mesh:label(), cluster.name, (self.plan:nodes():gsub(":.*", ""))),
    "  " .. memory_line(self),
    ("  step %s ms%s, %s, %s per rank"):format(ms(self.step),
      cluster.accuracy and (" +-%.0f %%"):format(100 * cluster.accuracy) or "", progress.rate(self.tokens_per_s),
      progress.rate(self.tokens_per_s / mesh:size())),
    "  " .. utilisation_line(self),
    "  limited by " .. price.limit(self, details.critical).text,
  }
  lines[#lines + 1] = sync_line(self)
  lines[#lines + 1] = ""
  return lines
end

local function step_rows(self)
  local rows = { { "a step", "ms", "share" } }
  local function add(name, seconds)
    if seconds > 0 then rows[#rows + 1] = { name, ms(seconds), percent(seconds, self.step) } end
  end
  add("kernels", self.computing)
  for _, dim in ipairs(price.dims_of(self.waiting)) do add("waiting for " .. dim, self.waiting[dim]) end
  add("waiting for the host", self.issuing)
  add("between phases", self.gaps)
  return rows
end

-- What kernels wait for and what the step depends on can be two dimensions: a collective waits for others, too.
local function limit_note(self, details)
  if self.cluster.device == "cpu" or self.exposed <= 0 then return "" end
  local most, dim = 0, price.limit(self, details.critical).dim
  local waited
  for _, name in ipairs(price.dims_of(self.waiting)) do
    if self.waiting[name] > most then most, waited = self.waiting[name], name end
  end
  local here = dim and waited and dim ~= waited and (", here %s, not %s"):format(dim, waited) or ""
  return "  waiting for: kernels stand still until it ends; limited by: what its end depends on in turn" .. here .. "\n"
end

local function phase_rows(self)
  local rows = { { "phase", "runs", "ms", "kernels", "waiting" } }
  for _, phase in ipairs(self.phases) do
    local waiting = 0
    for _, seconds in pairs(phase.waiting) do waiting = waiting + seconds end
    rows[#rows + 1] = { phase.name, times(phase.runs), ms(phase.seconds), percent(phase.computing, phase.seconds),
      percent(waiting, phase.seconds) }
  end
  return rows
end

local function by_family(exposed)
  local map, list = {}, {}
  for _, entry in ipairs(exposed) do
    local unit = family_of(entry.unit)
    local key = entry.op .. " " .. entry.dim .. " " .. unit
    if not map[key] then
      map[key] = { op = entry.op, dim = entry.dim, unit = unit, calls = 0, seconds = 0 }
      list[#list + 1] = map[key]
    end
    map[key].calls, map[key].seconds = map[key].calls + entry.calls, map[key].seconds + entry.seconds
  end
  table.sort(list, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds > b.seconds end
    return a.unit < b.unit
  end)
  return list
end

local function first_rows(head, list, cells)
  local rows = { head }
  for i = 1, math.min(#list, TOP) do rows[#rows + 1] = cells(list[i]) end
  if #list > TOP then rows[#rows + 1] = { ("and %d more"):format(#list - TOP) } end
  return rows
end

local function exposed_rows(self, details)
  return first_rows({ "kernels wait for", "over", "times", "ms", "share" }, by_family(details.exposed), function(e)
    return { e.op .. " " .. e.unit, e.dim, times(e.calls), ms(e.seconds), percent(e.seconds, self.step) }
  end)
end

local function op_rows(self, details)
  return first_rows({ "op", "calls", "ms", "share", "TFLOP/s", "GB/s" }, details.ops, function(e)
    local rate = e.flops > 0 and e.seconds > 0 and digits(e.flops / e.seconds / 1e12) or ""
    return { e.name, times(e.calls), ms(e.seconds), percent(e.seconds, self.step), rate,
      e.seconds > 0 and digits(e.bytes / e.seconds / 1e9) or "" }
  end)
end

local function critical_line(self, details)
  local critical, parts = details.critical, {}
  parts[1] = ("kernels %s"):format(percent(critical.kernels, self.step))
  for _, dim in ipairs(price.dims_of(critical.collectives)) do
    parts[#parts + 1] = ("collectives over %s %s"):format(dim, percent(critical.collectives[dim], self.step))
  end
  parts[#parts + 1] = ("issuing and gaps %s"):format(percent(math.max(0, critical.rest), self.step))
  return "  critical path: " .. table.concat(parts, ", ") .. "\n"
end

---A price on one page.
---@param self moonshard.Price
---@return string
function show.text(self)
  local details = price.details(self)
  local parts = { table.concat(head_lines(self, details), "\n") .. "\n", text_columns.of(step_rows(self), 1),
    limit_note(self, details), "\n", text_columns.of(phase_rows(self), 1), "\n" }
  if #details.exposed > 0 then
    parts[#parts + 1] = text_columns.of(exposed_rows(self, details), 2)
    parts[#parts + 1] = "\n"
  end
  parts[#parts + 1] = text_columns.of(op_rows(self, details), 1) .. attention_note(details.ops, TOP)
  if self.cluster.device ~= "cpu" then parts[#parts + 1] = "\n" .. critical_line(self, details) end
  return table.concat(parts)
end

local function phases_as_json(self)
  local list = {}
  for i, phase in ipairs(self.phases) do
    list[i] = { name = phase.name, runs = phase.runs, ms = 1e3 * phase.seconds, kernels_ms = 1e3 * phase.computing,
      issuing_ms = 1e3 * phase.issuing, waiting_ms = {} }
    for dim, seconds in pairs(phase.waiting) do list[i].waiting_ms[dim] = 1e3 * seconds end
  end
  return list
end

local function critical_as_json(critical)
  local record = { kernels = 1e3 * critical.kernels, rest = 1e3 * critical.rest, collectives = {} }
  for dim, seconds in pairs(critical.collectives) do record.collectives[dim] = 1e3 * seconds end
  return record
end

---The numbers of a price.
---@param self moonshard.Price
---@return table
function show.record(self)
  local summary, waiting, critical = self.plan:summary(), {}, price.critical(self)
  for dim, seconds in pairs(self.waiting) do waiting[dim] = 1e3 * seconds end
  local sizes, limit = {}, price.limit(self, critical)
  for dim = 0, self.plan.mesh.ndim - 1 do sizes[dim + 1] = tostring(self.plan.mesh:size(dim)) end
  return {
    mesh = table.concat(sizes, "x"), dims = self.plan.mesh:label():match("%((.*)%)"), cluster = self.cluster.name,
    ranks = self.plan.mesh:size(), fingerprint = summary.fingerprint, step_ms = 1e3 * self.step,
    tokens = self.tokens, tokens_per_s = self.tokens_per_s,
    tokens_per_s_per_rank = self.tokens_per_s / self.plan.mesh:size(), mfu = self.mfu, mfu_counts = self.mfu_counts,
    hfu = self.hfu, dtype = self.dtype, flops = self.flops, peak_bytes = self.bytes, room_bytes = self.room,
    fits = self.fits, comm_bytes = self.comm_bytes, kernels_ms = 1e3 * self.computing, waiting_ms = waiting,
    exposed_ms = 1e3 * self.exposed, issuing_ms = 1e3 * self.issuing, gaps_ms = 1e3 * self.gaps,
    local_sgd = self.sync and { every = self.sync.every, upper_bound = self.sync.delay > 0 } or nil,
    phases = phases_as_json(self), limit = limit,
    -- The one thread of a CPU's rank does one thing after another: causes are not what its step depends on.
    critical_ms = self.cluster.device ~= "cpu" and critical_as_json(critical) or nil,
  }
end

---The same with each exposed collective and each op.
---@param self moonshard.Price
---@return table
function show.detailed_record(self)
  local record, details = show.record(self), price.details(self)
  record.exposed, record.ops = {}, {}
  for i, e in ipairs(details.exposed) do
    record.exposed[i] = { op = e.op, unit = e.unit, dim = e.dim, times = e.calls, ms = 1e3 * e.seconds }
  end
  for i, e in ipairs(details.ops) do
    record.ops[i] = { op = e.name, calls = e.calls, ms = 1e3 * e.seconds, flops = e.flops, bytes = e.bytes }
  end
  return record
end

-- ---- many prices ------------------------------------------------------------------------------------------------

local function class_of(record) return record.fits and 1 or not record.refused and 2 or 3 end

local function better(a, b)
  if class_of(a) ~= class_of(b) then return class_of(a) < class_of(b) end
  if a.tokens_per_s ~= b.tokens_per_s then return (a.tokens_per_s or 0) > (b.tokens_per_s or 0) end
  return a.mesh < b.mesh
end

---Sorts records by tokens per second: those that fit first, refused ones last.
---@param records table[] of show.record, or { mesh, refused }
function show.sort(records) table.sort(records, better) end

local function limit_cell(limit)
  if limit.kind ~= "communication" then return limit.kind end
  return ("%s %s nodes"):format(limit.dim, limit.between and "between" or "inside")
end

-- The meshes that fit and are as fast as the first one, as far as prices tell, as a line; empty: it is alone.
local function tie_line(records, cluster)
  local within, tied = cluster:tie(), {}
  for _, r in ipairs(records) do
    if r.fits and r.tokens_per_s >= (1 - within) * records[1].tokens_per_s then tied[#tied + 1] = r.mesh end
  end
  if #tied < 2 then return "" end
  return ("  a tie: %s differ by less than %.3g %%, %s\n"):format(table.concat(tied, ", "), 100 * within,
    cluster.accuracy and "to which prices on this cluster are accurate" or "too little for prices to decide")
end

---A table of prices.
---@param records table[] sorted
---@param cluster moonshard.Cluster
---@return string
function show.table(records, cluster)
  local rows = { { "mesh", "tokens/s", "per rank", "step ms", "MFU", "exposed", "memory", "verdict",
    "limited by" } }
  local refused = {}
  for _, r in ipairs(records) do
    if r.refused then
      refused[#refused + 1] = ("  %s: %s\n"):format(r.mesh, r.refused)
    else
      rows[#rows + 1] = { r.mesh, ("%.0f"):format(r.tokens_per_s), ("%.0f"):format(r.tokens_per_s_per_rank),
        ("%.1f"):format(r.step_ms), share(r.mfu), percent(r.exposed_ms, r.step_ms), size(r.peak_bytes),
        r.fits and "fits" or "does not fit", limit_cell(r.limit) }
    end
  end
  local text = ("prices on %s, of %s of memory per rank\n"):format(cluster.name, size(cluster:room()))
  if #rows > 1 then text = text .. text_columns.of(rows, 1) .. tie_line(records, cluster) end
  for _, r in ipairs(records) do
    if r.local_sgd and r.local_sgd.upper_bound then
      text = text .. "  local SGD with a delay: its sums count in every step, so these are the most that steps take\n"
      break
    end
  end
  if #refused > 0 then text = text .. "refused:\n" .. table.concat(refused) end
  return text
end

return show
