-- What `moonshard tune` found, as text for people and as a table for JSON: the mesh, its step and those of plain
-- policies, the rules to paste with the price of each, what more memory would buy, and the other meshes.

local point = require("moonshard.tune.point")
local policies = require("moonshard.tune.policies")
local progress = require("moonshard.base.text.progress")
local rules_text = require("moonshard.tune.rules_text")
local mesh_search = require("moonshard.tune.mesh_search")
local text_columns = require("moonshard.base.text.text_columns")
local text_lines = require("moonshard.base.text.text_lines")

local report = {}

local size = progress.size
local OTHERS = 6 -- meshes
local COLUMNS = 120 -- of a line
local RULES = 64 -- of them for the rules of another mesh, after its numbers

---@class moonshard.TuneReport
---@field mesh_search moonshard.MeshSearch
---@field memory moonshard.MemoryLimit
---@field ranks integer
---@field row moonshard.TunedMesh the chosen one
---@field limit number bytes of the arenas: those of the memory, or the trainer's memory_limit if that is less
---@field best moonshard.Tried
---@field prices table<string, moonshard.RulePrice>
---@field options table of ms.fully_shard
---@field next moonshard.Tried? what more memory would buy

---@param found moonshard.MeshSearch at least one mesh of which fits
---@param memory moonshard.MemoryLimit
---@param ranks integer
---@return moonshard.TuneReport
function report.of(found, memory, ranks)
  local row = found.meshes[1]
  local of, best = row.search.trial, row.search.best
  return { mesh_search = found, memory = memory, ranks = ranks, row = row, limit = of.limit, best = best,
    prices = rules_text.prices(of, best),
    options = rules_text.options(of, best.point), next = row.search:next_step() }
end

-- ---- text -------------------------------------------------------------------------------------------------------

local function ms(seconds) return ("%.2f"):format(1e3 * seconds) end

local function step_cells(name, tried, row, limit)
  if tried.refused then return { name, "-", "-", "-", tried.refused } end
  return { name, ms(tried.seconds), progress.rate(row.tokens / tried.seconds), size(tried.bytes),
    tried.bytes <= limit and "" or "does not fit" }
end

local function step_rows(self)
  local row, limit = self.row, self.limit
  local rows = { { "", "step ms", "speed", "memory" }, step_cells("tuned", self.best, row, limit),
    step_cells("the recipe's rules", row.search.baselines.recipe, row, limit) }
  for _, policy in ipairs(policies.all) do
    for _, plain in ipairs(policy.plain or {}) do
      local tried = row.search.baselines[plain.name]
      if tried then rows[#rows + 1] = step_cells(point.describe(tried.point), tried, row, limit) end
    end
  end
  return rows
end

local function rules_part(self)
  local notes = {}
  for name, price in pairs(self.prices) do notes[name] = rules_text.price(price) end
  local rules = rules_text.of(self.options, notes)
  if rules.options == "" then return "\nno other rules are faster: the recipe can keep its own\n" end
  local uses_re = (rules.before .. rules.options):find("re[[", 1, true) and "; re is ms.re" or ""
  local before = rules.before ~= "" and "\nbefore ms.fully_shard\n" .. rules.before:gsub("[^\n]+", "  %0") or ""
  local config, replaced = self.row.search.trial.sharding.config, ""
  for _, name in ipairs(policies.replaced_by(self.options)) do
    if config[name] then
      replaced = replaced .. ("  leave out %s = %q, which these rules replace\n"):format(name, config[name])
    end
  end
  return ("%s\noptions of ms.fully_shard (what each changes in a step and on a rank%s)\n%s%s"):format(before, uses_re,
    (rules.options:gsub("[^\n]+", "  %0")), replaced)
end

-- A paragraph, whose further lines are indented.
local function wrapped(text)
  return "\n" .. table.concat(text_lines.wrapped(text, COLUMNS - 2), "\n  ") .. "\n"
end

local function next_part(self)
  if not self.next then return "\nmore memory: no rules that were tried need more and are faster\n" end
  return wrapped(("more memory: %s more would save %s ms a step: %s"):format(size(self.next.bytes - self.limit),
    ms(self.best.seconds - self.next.seconds), point.describe(self.next.point)))
end

-- The rows of a mesh: its rules can take several.
local function add_mesh(rows, row)
  local best, smallest = row.search.best, row.search.smallest
  if not best then
    rows[#rows + 1] = { row.mesh, "-", "-", smallest and size(smallest.bytes) or "-", "nothing that was tried fits" }
    return
  end
  local rules = text_lines.wrapped(row.searched and point.describe(best.point) or "plain rules only", RULES)
  rows[#rows + 1] = { row.mesh, ms(best.seconds), progress.rate(row.tokens / best.seconds), size(best.bytes), rules[1] }
  for i = 2, #rules do rows[#rows + 1] = { "", "", "", "", rules[i] } end
end

local function meshes_part(self)
  local rows, refused, shown, more = { { "other meshes", "step ms", "speed", "memory", "rules" } }, {}, 0, 0
  for i, row in ipairs(self.mesh_search.meshes) do
    if row.refused then refused[#refused + 1] = row
    elseif i > 1 and shown < OTHERS then
      add_mesh(rows, row)
      shown = shown + 1
    elseif i > 1 then more = more + 1 end
  end
  local parts = { #rows > 1 and "\n" .. text_columns.of(rows) or "" }
  if more > 0 then parts[#parts + 1] = ("  (%d more)\n"):format(more) end
  if #refused > 0 then
    parts[#parts + 1] = wrapped(("the recipe refuses %d mesh%s, the first of them %s: %s"):format(#refused,
      #refused == 1 and "" or "es", refused[1].mesh, tostring(refused[1].refused)))
  end
  return table.concat(parts)
end

local function memory_line(self)
  local memory = self.memory
  if self.limit < memory.bytes then
    return ("  at most %s per rank, the trainer's memory_limit"):format(size(self.limit))
  end
  local taken = memory.reserved > 0
    and (", of %s less %s for the rest"):format(size(memory.allowed), size(memory.reserved)) or ""
  return ("  at most %s per rank%s"):format(size(memory.bytes), taken)
end

---@param self moonshard.TuneReport
---@return string "64 ranks on h100x8-400g"
function report.place(self)
  return ("%d rank%s on %s"):format(self.ranks, self.ranks == 1 and "" or "s", self.mesh_search.cluster.name)
end

---@param self moonshard.TuneReport
---@return string
function report.text(self)
  local list = self.mesh_search.meshes
  return table.concat({
    ("tune: %s: mesh %s, %s, %s per rank\n"):format(report.place(self), self.row.label,
      progress.rate(self.row.tokens / self.best.seconds), size(self.best.bytes)),
    ("%s; %d plans of %d mesh%s\n\n"):format(memory_line(self), self.mesh_search.compiles, #list,
      #list == 1 and "" or "es"),
    text_columns.of(step_rows(self)), rules_part(self), next_part(self), meshes_part(self),
  })
end

-- ---- JSON -------------------------------------------------------------------------------------------------------

local function tried_as_json(tried, row)
  if not tried then return nil end
  if tried.refused then return { refused = tried.refused } end
  return { step_ms = 1e3 * tried.seconds, tokens_per_s = row.tokens / tried.seconds, peak_bytes = tried.bytes,
    fits = tried.fits, exposed_ms = 1e3 * tried.exposed, fingerprint = tried.fingerprint }
end

local function mesh_as_json(row)
  if row.refused then return { mesh = row.mesh, refused = tostring(row.refused) } end
  local record = { mesh = row.mesh, tokens = row.tokens, searched = row.searched,
    best = tried_as_json(row.search.best, row), smallest_bytes = row.search.smallest and row.search.smallest.bytes,
    rules = row.search.best and point.describe(row.search.best.point) }
  for name, tried in pairs(row.search.baselines) do record[name] = tried_as_json(tried, row) end
  return record
end

---@param self moonshard.TuneReport
---@return table
function report.json(self)
  local record = tried_as_json(self.best, self.row)
  record.cluster, record.ranks, record.mesh = self.mesh_search.cluster.name, self.ranks, self.row.mesh
  record.dims, record.tokens = self.row.label:match("%((.*)%)"), self.row.tokens
  record.limit_bytes, record.reserved_bytes = self.limit, self.memory.reserved
  record.plans, record.rules = self.mesh_search.compiles, rules_text.of(self.options)
  record.prices, record.meshes = {}, {}
  for name, price in pairs(self.prices) do
    record.prices[name] = { ms = 1e3 * price.seconds, bytes = price.bytes }
  end
  for i, row in ipairs(self.mesh_search.meshes) do record.meshes[i] = mesh_as_json(row) end
  record.more_memory = self.next and { bytes = self.next.bytes - self.limit,
    rules = point.describe(self.next.point), ms = 1e3 * (self.next.seconds - self.best.seconds) }
  return record
end

---Whether the best plan of a search over meshes fits.
---@param found moonshard.MeshSearch
---@return boolean
function report.fits(found) return mesh_search.cost(found.meshes[1]) < math.huge end

return report
