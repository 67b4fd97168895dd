-- A price as a self-contained page: the step as a timeline with a lane for each stream, its memory by category over the
-- same time, the mesh with its groups, and the text of `moonshard price`.

local bars = require("moonshard.page.bars")
local document = require("moonshard.page.document")
local ffi = require("ffi")
local frame = require("moonshard.page.frame")
local json = require("moonshard.base.text.json")
local lanes = require("moonshard.page.lanes")
local memory = require("moonshard.price.memory")
local price = require("moonshard.price.price")
local progress = require("moonshard.base.text.progress")
local ranks = require("moonshard.page.ranks")
local show = require("moonshard.price.show")
local style = require("moonshard.page.style")

local page = {}

local KERNEL = 0 -- enum ms_instr_kind
-- None of a mesh dimension that has collectives (style.of_dimension).
local FORWARD, BACKWARD, UPDATE, OTHER = "c1", "c2", "c8", "c6"
local UPDATES = { update = true, outer = true }
-- Lanes in the order of a unit's way through a step; other streams follow.
local LANES = { "compute", "gather", "reduce", "replicate" }

-- ---- the timeline -----------------------------------------------------------------------------------------------

local function class_of(self, event, phase)
  if event.kind == KERNEL then
    return UPDATES[phase] and UPDATE or phase == "norm" and OTHER or event.backward ~= 0 and BACKWARD or FORWARD
  end
  return event.mesh_dim >= 0 and style.of_dimension(self.plan.mesh:dim_name(event.mesh_dim)) or OTHER
end

-- Adds the slices of a phase that begins `start` seconds into the step to the lanes of its streams.
local function add_phase(self, phase, instructions, start, by_stream)
  local list, n = price.timeline(self.plan, self.cluster, phase)
  for i = 0, n - 1 do
    local event = list[i]
    local instruction = instructions[event.instruction + 1]
    if not instruction.in_flight or instruction.kind == "join" then
      local lane = by_stream[instruction.stream] or {}
      by_stream[instruction.stream] = lane
      lane[#lane + 1] = { begin = 1e3 * (start + event.begin), finish = 1e3 * (start + event["end"]),
        class = class_of(self, event, phase), title = ffi.string(event.name) .. " " .. ffi.string(event.scope) }
    end
  end
end

local function in_lanes(by_stream)
  local list, known = {}, {}
  local function add(name)
    if by_stream[name] and not known[name] then
      table.sort(by_stream[name], function(a, b)
        if a.begin ~= b.begin then return a.begin < b.begin end
        return a.finish < b.finish
      end)
      list[#list + 1], known[name] = { name = name, slices = by_stream[name] }, true
    end
  end
  for _, name in ipairs(LANES) do add(name) end
  local others = {}
  for name in pairs(by_stream) do others[#others + 1] = name end
  table.sort(others)
  for _, name in ipairs(others) do add(name) end
  return list
end

---The timeline of a priced step as a chart.
---@param self moonshard.Price
---@return moonshard.LaneChart
function page.timeline(self)
  local instructions, by_stream, phases = {}, {}, {}
  for _, phase in ipairs(json.decode(self.plan:json()).phases) do instructions[phase.name] = phase.instructions end
  local gap, at = self.cluster:struct().phase_gap, self.cluster:struct().step_gap
  for _, phase in ipairs(price.in_order(self)) do
    at = at + gap
    add_phase(self, phase.name, instructions[phase.name], at, by_stream)
    phases[#phases + 1] = { name = phase.name, begin = 1e3 * at, finish = 1e3 * (at + phase.seconds) }
    at = at + phase.seconds
  end
  return { title = "Timeline of a step", lanes = in_lanes(by_stream), phases = phases, finish = 1e3 * at }
end

---The colours of a timeline that it uses.
---@param self moonshard.Price
---@return { class: string, name: string }[]
function page.legend(self)
  local entries = { { class = FORWARD, name = "forward" }, { class = BACKWARD, name = "backward" },
    { class = UPDATE, name = "update" } }
  for _, dim in ipairs(price.dims_of(self.waiting)) do
    if self.comm_bytes[dim] > 0 then
      entries[#entries + 1] = { class = style.of_dimension(dim), name = "over " .. dim }
    end
  end
  entries[#entries + 1] = { class = OTHER, name = "norm and totals" }
  return entries
end

-- ---- the page ---------------------------------------------------------------------------------------------------

-- The mesh with its groups, where it is small enough.
local function mesh_of(self)
  local mesh, sizes = self.plan.mesh, {}
  for d = 0, mesh.ndim - 1 do sizes[d + 1] = mesh:size(d) end
  if not mesh.names or not ranks.can_draw(sizes) then return "" end
  local chart = { title = "The mesh and its groups", sizes = sizes, names = mesh.names,
    ranks_per_node = self.cluster.ranks_per_node }
  return frame.framed(chart.title, "Ranks that exchange something over a dimension, and the nodes that they are on.",
    ranks.svg(chart), ranks.legend(chart))
end

local function tiles(self, limit)
  return "<dl>" .. document.tile("step", ("%.2f ms"):format(1e3 * self.step), limit.text, true)
    .. document.tile("speed", progress.rate(self.tokens_per_s), progress.rate(self.tokens_per_s / self.plan.mesh:size())
      .. " per rank")
    .. document.tile("MFU", self.mfu and ("%.1f %%"):format(100 * self.mfu) or "not known", self.mfu_counts)
    .. document.tile(self.fits and "memory, fits" or "memory, does not fit", progress.size(self.bytes),
      "of " .. progress.size(self.room)) .. "</dl>"
end

---@param self moonshard.Price
---@param recipe string
---@return string
function page.of(self, recipe)
  local about = ("%s on %s, %s; priced, nothing ran"):format(recipe, self.cluster.name,
    (self.plan:nodes():gsub(":.*", "")))
  local timeline = page.timeline(self)
  local which = self.sync
    and (" With local SGD it is one that synchronises, as one in %d does."):format(self.sync.every) or ""
  return document.of(("A step on mesh %s"):format(self.plan.mesh:label()), table.concat({
    '<p class="about">' .. bars.escape(about) .. "</p>", tiles(self, price.limit(self, price.critical(self))),
    frame.framed(timeline.title, "Rank 0: kernels, and collectives by the stream that runs them. Where the first lane "
      .. "is empty, kernels wait." .. which, lanes.svg(timeline), page.legend(self)),
    memory.figure(self, timeline), mesh_of(self),
    "<section><h2>In words</h2><pre>" .. bars.escape(show.text(self)) .. "</pre></section>",
  }, "\n"))
end

return page
