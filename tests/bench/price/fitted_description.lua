-- Writes what was fitted on a stack's runs as a description of a cluster, which extends that of the hardware.
--
-- All constants of training_clusters.lua have a field, so the description says what the fit says, but for rounding. It
-- holds values instead of factors: rates between nodes as parts of the network's where the hardware's description has
-- them so, and the longer loss as measured kernels.

local cluster = require("moonshard.price.cluster")
local output_file = require("moonshard.base.files.output_file")
local training_clusters = require("training_clusters")

local fitted_description = {}

---@class moonshard.bench.Fit
---@field description moonshard.Cluster of the hardware
---@field constants table<string, number> fitted, by name
---@field before table<string, number> those from which the fit started
---@field before_source string whose they are
---@field runs moonshard.bench.Run[] that fitted
---@field document string? which document has them; nil: those of a user
---@field about string?
---@field accuracy number? the error that nine of ten held-out runs do not exceed; nil: too few runs to hold any out

local UNMOVED = 0.02 -- of a constant's spread: runs that move it less hardly tell it

-- ---- text of values ---------------------------------------------------------------------------------------------

local function percent(part) return ('"%.3g %%"'):format(100 * part) end

local function rate(bytes)
  if bytes >= 1e12 then return ('"%.3g TB/s"'):format(1e-12 * bytes) end
  return ('"%.3g GB/s"'):format(1e-9 * bytes)
end

local function number(value) return ("%.3g"):format(value) end

local function time(seconds)
  if seconds >= 1e-3 then return ('"%.3g ms"'):format(1e3 * seconds) end
  return ('"%.3g us"'):format(1e6 * seconds)
end

-- ---- parts of the description -----------------------------------------------------------------------------------

local function writer(fit)
  local w, lines = {}, {}
  local spread = {}
  for _, constant in ipairs(training_clusters.CONSTANTS) do spread[constant.name] = constant.spread end
  function w.line(format, ...) lines[#lines + 1] = select("#", ...) > 0 and format:format(...) or format end
  function w.text() return table.concat(lines, "\n") .. "\n" end
  -- A field and the constant that the runs fit.
  function w.field(indent, name, value, constant)
    local moved = math.abs(math.log(fit.constants[constant] / fit.before[constant])) > UNMOVED * spread[constant]
    w.line("%s%s = { %s, %s },", (" "):rep(indent), name, value, moved and "FITTED" or "BEFORE")
  end
  return w
end

local function write_device(w, c)
  w.line("  device = {")
  w.line("    product = {")
  w.field(6, "efficiency", percent(c.product.efficiency), "products")
  w.field(6, "k_half", number(c.product.k_half), "inner size")
  w.line("    },")
  w.line("    attention = {")
  w.field(6, "forward", percent(c.attention.forward), "attention")
  w.field(6, "backward", percent(c.attention.backward), "attention backward")
  w.field(6, "keys_half", number(c.attention.keys_half), "keys")
  w.line("    },")
  w.field(4, "memory_rate", rate(c.memory_rate), "memory")
  w.field(4, "issue", time(c.issue), "issue")
  w.field(4, "step_gap", time(c.step_gap), "step gap, s")
  w.field(4, "overlap", percent(c.overlap), "overlap, part")
  w.line("  },")
end

local function between_of(description, name, hardware, link)
  local part = training_clusters.part_between(description, name)
  return part and percent(part * link.between / hardware.between) or rate(link.between)
end

local function write_links(w, description, c)
  w.line("  links = {")
  for i, name in ipairs(description.link_names) do
    local hardware, link = description:struct().link[i - 1], c.link[i - 1]
    w.line("    %s = {", name)
    w.field(6, "inside", rate(link.inside), "inside")
    if link.between > 0 then
      w.field(6, "between", between_of(description, name, hardware, link), "between")
      w.field(6, "step_between", time(link.step_between), "steps between")
      w.field(6, "log_between", percent(link.log_between), "growth, part")
    end
    w.line("    },")
  end
  w.line("  },")
end

local function write_kernels(w, c)
  w.line("  kernels = {")
  w.line('    source = FITTED .. ": the loss, which is not one kernel there",')
  w.line("    points = {")
  for i, op in ipairs(training_clusters.UNFUSED) do
    local point = c.point[i - 1]
    w.line('      { op = %q, shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },', op)
    w.line("        flops = 0, bytes = %.0f, time = %s },", point.bytes, time(point.seconds))
  end
  w.line("    },")
  w.line("  },")
end

-- A path is relative to the file that has it, and this one can be anywhere.
local function name_of(description)
  local name = description.name
  local is_relative = name:find("/", 1, true) and name:sub(1, 1) ~= "/" or name:find("%.lua$") and name:sub(1, 1) ~= "/"
  return is_relative and os.getenv("PWD") .. "/" .. name or name
end

local function runs_of(fit)
  return ("%d run%s%s"):format(#fit.runs, #fit.runs == 1 and "" or "s", fit.document and " of " .. fit.document or "")
end

local function body_of(fit)
  local w, c = writer(fit), training_clusters.cluster(fit.description, fit.constants)
  w.line("return {")
  if fit.about then w.line("  about = %q,", fit.about) end
  w.line("  extends = %q,", name_of(fit.description))
  if fit.accuracy then w.line('  accuracy = { "%.1f %%", HELD_OUT },', 100 * fit.accuracy) end
  write_device(w, c)
  write_links(w, fit.description, c)
  write_kernels(w, c)
  w.line("}")
  return w.text()
end

---The description as Lua.
---@param fit moonshard.bench.Fit
---@return string
function fitted_description.text(fit)
  local body = body_of(fit)
  local sources = {
    FITTED = ("fitted on %s by make bench-price"):format(runs_of(fit)),
    BEFORE = ("%s: the fitted runs hardly tell it"):format(fit.before_source),
    HELD_OUT = "nine of ten of these runs are within it, each by a fit of others that held it out",
  }
  local lines = { "-- What a software stack reaches on the hardware that this description extends.",
    "-- Written by `make bench-price PART=published WRITE=folder`.", "" }
  for _, name in ipairs({ "FITTED", "BEFORE", "HELD_OUT" }) do
    if body:find(name, 1, true) then lines[#lines + 1] = ("local %s = %q"):format(name, sources[name]) end
  end
  return table.concat(lines, "\n") .. "\n\n" .. body
end

---@param fit moonshard.bench.Fit
---@param path string
function fitted_description.write(fit, path)
  output_file.write("description", path, fitted_description.text(fit))
end

---The description, read as any other.
---@param fit moonshard.bench.Fit
---@return moonshard.Cluster
function fitted_description.load(fit)
  local reserved = os.tmpname()
  local path = reserved .. ".lua"
  fitted_description.write(fit, path)
  local read = cluster.load(path)
  os.remove(path)
  os.remove(reserved)
  return read
end

return fitted_description
