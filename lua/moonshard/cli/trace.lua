-- moonshard trace: validates a trace that `moonshard run --trace` or `moonshard price --trace` wrote, and summarises it
-- or compares it with another one.

local attention_note = require("moonshard.price.attention_note")
local trace_compare = require("moonshard.cli.trace.trace_compare")
local trace_file = require("moonshard.cli.trace.trace_file")
local command_line = require("moonshard.cli.options.command_line")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local progress = require("moonshard.base.text.progress")
local status = require("moonshard.base.exit_status")
local text_columns = require("moonshard.base.text.text_columns")
local refuse = status.refuse

local trace = {}

local OPTIONS = {
  ["--json"] = { name = "json", value = "flag" },
  ["--top"] = { name = "top", value = "count" },
  ["--compare"] = { name = "compare", value = "text", what = "a trace, the one to compare with" },
}
local ROWS = 20
-- "waiting" is that of --compare and of prices.
local WORDS = "  until met: part of a collective, until all its ranks had begun it; waiting: phases without a kernel\n"

-- A million operations or bytes in a millisecond are 10^9 a second.
local function giga(amount, ms)
  return ms > 0 and ("%.3g"):format(amount / ms / 1e6) or ""
end

local function tera(flops, ms)
  local rate = ms > 0 and flops / ms / 1e9 or 0
  if rate <= 0 then return "" end
  return rate < 1e-3 and "< 0.001" or ("%.3g"):format(rate)
end

---@param note string? below the rows
local function print_table(rows, note) io.write(text_columns.of(rows, 1), note or "", "\n") end

local function rows_of(head, list, top, cells)
  local rows = { head }
  for i, entry in ipairs(list) do
    if i > top then
      rows[#rows + 1] = { ("and %d more"):format(#list - top) }
      break
    end
    rows[#rows + 1] = cells(entry)
  end
  return rows
end

local function ms(value) return ("%.3f"):format(value) end

local function percent(part, whole) return ("%.1f %%"):format(100 * part / math.max(whole, 1e-9)) end

local function print_head(path, sum)
  local ranks, steps = sum.ranks, sum.steps
  io.write(("%s: %s, %s, %d kernels, %d collectives\n\n"):format(path,
    #ranks == 1 and "rank " .. ranks[1].rank or ("ranks %d-%d"):format(ranks[1].rank, ranks[#ranks].rank),
    steps[1] and ("steps %d-%d of %.2f ms"):format(steps[1], steps[#steps], sum.step_ms) or "no steps",
    sum.kernels, sum.collectives))
end

local function print_summary(path, sum, top)
  print_head(path, sum)
  print_table(rows_of({ "op", "calls", "ms", "share", "TFLOP/s", "GB/s" }, sum.ops, top, function(e)
    return { e.name, tostring(e.calls), ms(e.ms), percent(e.ms, sum.kernel_ms),
      tera(e.flops, e.ms), giga(e.bytes, e.ms) }
  end), attention_note(sum.ops, top))
  if #sum.by_collective > 0 then
    local head = { "collective", "calls", "ms", "until met ms", "bytes" }
    print_table(rows_of(head, sum.by_collective, top, function(e)
      return { e.name, tostring(e.calls), ms(e.ms), ms(e.until_met_ms), progress.size(e.bytes) }
    end))
  end
  local head = { "unit or module", "kernels ms", "collectives ms", "until met ms" }
  print_table(rows_of(head, sum.units, top, function(e)
    return { e.name == "" and "(no module)" or e.name, ms(e.kernel_ms), ms(e.collective_ms), ms(e.until_met_ms) }
  end))
  head = { "rank", "steps ms", "kernels", "waiting", "outside the engine" }
  print_table(rows_of(head, sum.ranks, #sum.ranks, function(e)
    return { tostring(e.rank), ms(e.step_ms), percent(e.kernel_ms, e.step_ms), percent(e.waiting_ms, e.step_ms),
      percent(e.outside_ms, e.step_ms) }
  end), WORDS)
end

-- The events of a trace with at least one slice. Refuses a file that is not a consistent trace.
local function read(path)
  local events, why = trace_file.read(input_file.read(path, "moonshard trace needs a trace file"))
  if not events then refuse("MS_EINVAL", "trace %s: %s", path, why) end
  local wrong = trace_file.check(events)
  if wrong then refuse("MS_EINVAL", "trace %s: %s", path, wrong) end
  if not trace_file.has_slices(events) then refuse("MS_EINVAL", "trace %s: contains no slices", path) end
  return events
end

local function compare(line)
  local found = trace_compare.of(read(line.compare), read(line.recipe))
  io.write(line.json and json.encode(found) .. "\n"
    or trace_compare.text(found, { line.compare, line.recipe }, line.top or ROWS))
  return status.OK
end

---@param arguments string[] without "trace"
---@return integer exit status
function trace.main(arguments)
  local line = command_line.parse("moonshard trace", arguments, { recipe = "TRACE.json", optional = true,
    options = OPTIONS })
  if not line.recipe then
    refuse("MS_EINVAL", line.compare and "moonshard trace --compare needs two files: moonshard trace --compare "
      .. "PREDICTED.json REAL.json" or "moonshard trace needs a file: moonshard trace TRACE.json")
  end
  if line.settings[1] then refuse("MS_EINVAL", "moonshard trace takes no settings like %s=", line.settings[1].key) end
  if line.compare then return compare(line) end
  local path, sum = line.recipe, trace_file.summarize(read(line.recipe))
  if line.json then io.write(json.encode(sum), "\n")
  else print_summary(path, sum, line.top or ROWS) end
  return status.OK
end

return trace
