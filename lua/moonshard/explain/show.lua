-- An explanation as text: rules without effect, a table per policy, the peak, exposed collectives, and advice.

local advice = require("moonshard.explain.advice")
local better_mesh = require("moonshard.explain.better_mesh")
local plans = require("moonshard.engine.plan")
local plan_costs = require("moonshard.explain.plan_costs")
local policies = require("moonshard.shard.policies.policies")
local size = require("moonshard.base.text.progress").size
local text_lines = require("moonshard.base.text.text_lines")

local show = {}

-- ---- tables -----------------------------------------------------------------------------------------------------

local function rule_text(rule)
  if not rule then return "default" end
  local where = rule.where or ""
  if not rule.pattern then return "one value for all  " .. where end
  return rule.pattern .. "  " .. where
end

local function same(a, b)
  return a.text == b.text and rule_text(a.rule) == rule_text(b.rule)
end

-- Merges neighbours with the same value and rule into one row. Its cost is the sum, or the maximum for bytes that are
-- kept at different times (in_turn).
local function collapse(rows, all)
  local result = {}
  for _, row in ipairs(rows) do
    local run = result[#result]
    if all or not run or not same(run, row) then
      run = { name = row.name, text = row.text, rule = row.rule, count = 0, gathered = 0, reduced = row.reduced and 0,
        gathered_wire = 0, reduced_wire = 0, kept = {} }
      result[#result + 1] = run
    end
    run.last, run.count = row.name, run.count + 1
    run.gathered, run.reduced = run.gathered + row.gathered, run.reduced and run.reduced + row.reduced
    run.gathered_wire = run.gathered_wire + row.gathered_wire
    run.reduced_wire = run.reduced_wire + (row.reduced_wire or 0)
    for category, bytes in pairs(row.kept) do
      local before = run.kept[category] or 0
      run.kept[category] = row.in_turn and math.max(before, bytes) or before + bytes
    end
  end
  return result
end

-- A name without the indices of lists: "layers.*.mlp.w1.weight".
local function family_of(name) return (("." .. name):gsub("%.%d+%f[%.%z]", ".*")) end

-- Groups parameters that differ only in an index, so that they can be merged into one row.
local function by_family(rows)
  local families, order = {}, {}
  for _, row in ipairs(rows) do
    local family = family_of(row.name)
    if not families[family] then
      families[family] = {}
      order[#order + 1] = families[family]
    end
    table.insert(families[family], row)
  end
  local result = {}
  for _, family in ipairs(order) do
    for _, row in ipairs(family) do result[#result + 1] = row end
  end
  return result
end

local function run_name(first, last, count)
  if count == 1 then return first end
  return count == 2 and first .. ", " .. last or ("%s .. %s (%d)"):format(first, last, count)
end

local function kept_text(kept)
  local parts = {}
  for _, category in ipairs(plans.CATEGORIES) do
    if (kept[category] or 0) > 0 then parts[#parts + 1] = category .. " " .. size(kept[category]) end
  end
  return #parts > 0 and table.concat(parts, ", ") or "-"
end

-- "8.3 KiB, 4.1 KiB between nodes"
local function bytes_text(bytes, wire)
  if bytes == 0 then return "-" end
  return wire > 0 and ("%s, %s between nodes"):format(size(bytes), size(wire)) or size(bytes)
end

-- Columns as wide as their widest cell, two spaces apart.
local function aligned(rows)
  local widths, lines = {}, {}
  for _, cells in ipairs(rows) do
    for i, cell in ipairs(cells) do widths[i] = math.max(widths[i] or 0, #cell) end
  end
  for _, cells in ipairs(rows) do
    local parts = {}
    for i, cell in ipairs(cells) do parts[i] = cell .. (" "):rep(widths[i] - #cell) end
    lines[#lines + 1] = text_lines.trim_end("  " .. table.concat(parts, "  "))
  end
  return lines
end

local function add_table(lines, policy, rows, all)
  lines[#lines + 1] = "\n" .. policy.name
  if #rows == 0 then
    lines[#lines + 1] = "  no " .. policy.of
    return
  end
  local has_reduced = rows[1].reduced ~= nil
  local cells = { { policy.of, "value", "gathered", "kept", "rule" } }
  if has_reduced then table.insert(cells[1], 4, "reduced") end
  if policy.of == "parameter" and not all then rows = by_family(rows) end
  for _, row in ipairs(collapse(rows, all)) do
    local line = { run_name(row.name, row.last, row.count), row.text,
      bytes_text(row.gathered, row.gathered_wire), kept_text(row.kept), rule_text(row.rule) }
    if has_reduced then table.insert(line, 4, bytes_text(row.reduced, row.reduced_wire)) end
    cells[#cells + 1] = line
  end
  for _, line in ipairs(aligned(cells)) do lines[#lines + 1] = line end
end

-- ---- the peak ---------------------------------------------------------------------------------------------------

local function largest_first(by_unit)
  local names, parts = {}, {}
  for name in pairs(by_unit or {}) do names[#names + 1] = name end
  table.sort(names, function(a, b)
    if by_unit[a] ~= by_unit[b] then return by_unit[a] > by_unit[b] end
    return a < b
  end)
  for i = 1, math.min(#names, 4) do parts[i] = ("%s %s"):format(names[i], size(by_unit[names[i]])) end
  if #names > 4 then parts[#parts + 1] = ("%d more"):format(#names - 4) end
  return table.concat(parts, ", ")
end

local function add_peak(lines, found)
  local peak = found.peak
  lines[#lines + 1] = ("\npeak: %s of arenas; most of it is in use (%s) at instruction %d of phase %s"):format(
    size(found.peak_bytes), size(peak.in_use), peak.instruction, peak.phase)
  local scope = peak.scope ~= "" and (" of %s"):format(peak.scope) or ""
  lines[#lines + 1] = ("  %s%s%s, unit %s"):format(peak.op, scope, peak.backward and " (backward)" or "", peak.unit)
  local cells, shares = {}, plan_costs.shares(peak)
  for _, category in ipairs(plans.CATEGORIES) do
    if peak.bytes[category] > 0 then
      local of_units = largest_first(shares[category])
      cells[#cells + 1] = { category, size(peak.bytes[category]), of_units }
    end
  end
  for _, line in ipairs(aligned(cells)) do lines[#lines + 1] = line end
end

-- ---- advice -----------------------------------------------------------------------------------------------------

local function change(bytes, of)
  if bytes == 0 then return "leaves " .. of .. " as it is" end
  return ("%s %s of %s"):format(bytes < 0 and "saves" or "costs", size(math.abs(bytes)), of)
end

local VERBS = {
  keep = "keeping %s after forward", reshard = "resharding %s after forward", recompute = "recomputing %s",
  ["keep activations"] = "keeping the activations of %s",
}

local function name_of(candidate)
  local names = candidate.names
  if candidate.action == "prefetch" then return ("prefetch = %d"):format(candidate.depth) end
  if candidate.action == "fuse the loss" then return 'ms.loss.cross_entropy { fused = "auto" }' end
  if candidate.action == "whole logits" then return "ms.loss.cross_entropy without fused" end
  return VERBS[candidate.action]:format(run_name(names[1], names[#names], #names))
end

local function candidate_text(candidate, first)
  local who = name_of(candidate)
  if candidate.refused then return ("  %s: %s"):format(who, candidate.refused) end
  local gathers, peak = change(candidate.gathered, "gathers per step"), change(candidate.peak, "peak")
  if first == "peak" then gathers, peak = peak, gathers end
  return ("  %s %s, %s"):format(who, gathers, peak)
end

-- ---- changes of placement ---------------------------------------------------------------------------------------

local function moved(op, bytes) return bytes > 0 and ("%s %s"):format(op, size(bytes)) or op or "-" end

-- What a change takes in backward: first the gather that repeats forward's.
local function backward_of(one)
  if not one.regathered then return one.backward end
  return one.backward and one.forward .. ", " .. one.backward or one.forward
end

-- Changes that differ only in the module are one row, with the bytes of all.
local function rows_of_conversions(conversions, micro_batches, all)
  local rows, by_text = {}, {}
  for i, one in ipairs(conversions) do
    local key = table.concat({ one.dim, one.from, one.to, table.concat(one.shape, ","), one.dtype, one.forward,
      backward_of(one) or "", family_of(one.module), all and i or "" }, " ")
    local row = by_text[key]
    if not row then
      row = { of = one, first = one.module, count = 0, forward = 0, backward = 0 }
      rows[#rows + 1], by_text[key] = row, row
    end
    row.last, row.count = one.module, row.count + 1
    row.forward = row.forward + micro_batches * one.forward_bytes
    row.backward = row.backward + micro_batches * one.backward_bytes
  end
  return rows
end

local function add_conversions(lines, found)
  if #found.conversions == 0 then return end
  lines[#lines + 1] = "\nchanges of placement"
  local cells = { { "module", "dimension", "value", "from", "to", "forward", "backward" } }
  for _, row in ipairs(rows_of_conversions(found.conversions, found.micro_batches, found.all)) do
    local one = row.of
    cells[#cells + 1] = { run_name(row.first == "" and "root, loss" or row.first, row.last, row.count), one.dim,
      ("[%s] %s"):format(table.concat(one.shape, ","), one.dtype), one.from, one.to, moved(one.forward, row.forward),
      moved(backward_of(one), row.backward) }
  end
  for _, line in ipairs(aligned(cells)) do lines[#lines + 1] = line end
end

-- ---- losses in chunks -------------------------------------------------------------------------------------------

-- What whole logits would cost, which is more than the difference of their bytes where something else is the peak.
local function whole_logits_of(found)
  for _, candidate in ipairs(found.advice) do
    if candidate.action == "whole logits" and not candidate.refused then return candidate.peak end
  end
end

local function add_losses(lines, found)
  for i, loss in ipairs(found.losses) do
    if i == 1 then lines[#lines + 1] = "" end
    lines[#lines + 1] = ("loss: in %d chunk%s of %d rows, %s of logits at a time, not %s%s"):format(loss.chunks,
      loss.chunks == 1 and "" or "s", loss.chunk, size(loss.logits_bytes), size(loss.whole_bytes),
      loss.again and "; backward makes them again" or "")
  end
  local costs = #found.losses > 0 and whole_logits_of(found)
  if costs then lines[#lines + 1] = "  whole logits: " .. change(costs, "peak") end
end

-- ---- owners of matrices -----------------------------------------------------------------------------------------

local function add_muon(lines, found)
  local muon = found.muon
  if not muon then return end
  lines[#lines + 1] = ("\nmuon: %d matri%s, orthogonalised on %d rank%s; the most work of a rank is %.2f times the mean"
    ):format(muon.matrices, muon.matrices == 1 and "x" or "ces", muon.ranks, muon.ranks == 1 and "" or "s",
    muon.balance)
  if muon.ranks == 1 then return end
  local by_rank, ranks = {}, {}
  for name, rank in pairs(muon.of) do
    if not by_rank[rank] then
      by_rank[rank] = {}
      ranks[#ranks + 1] = rank
    end
    table.insert(by_rank[rank], name)
  end
  table.sort(ranks)
  local cells = { { "rank", "GFLOP a step", "matrices" } }
  for _, rank in ipairs(ranks) do
    local names = by_rank[rank]
    table.sort(names)
    local shown = found.all and #names or math.min(#names, 4)
    cells[#cells + 1] = { tostring(rank), ("%.3g"):format(muon.flops[rank] / 1e9),
      table.concat(names, ", ", 1, shown) .. (shown < #names and (", %d more"):format(#names - shown) or "") }
  end
  for _, line in ipairs(aligned(cells)) do lines[#lines + 1] = line end
end

-- ---- what waits -------------------------------------------------------------------------------------------------

local function add_exposed(lines, found)
  local list, phase = found.exposed.exposed, nil
  if found.exposed.collectives == 0 then return end
  lines[#lines + 1] = ("\nexposed: %d of %d collectives of the passes overlap with no kernel"):format(#list,
    found.exposed.collectives)
  for _, coll in ipairs(list) do
    local unit = coll.unit == "" and "root" or coll.unit
    local text = ("%s %s%s"):format(coll.op, unit, coll.backward and " (backward)" or "")
    if coll.phase == phase then
      lines[#lines] = lines[#lines] .. ", " .. text
    else
      lines[#lines + 1] = ("  %s  %s"):format(coll.phase, text)
    end
    phase = coll.phase
  end
end

local SHOWN = 4

local function add_list(lines, title, list, first, all)
  if #list == 0 then return end
  lines[#lines + 1] = title
  for i = 1, all and #list or math.min(#list, SHOWN) do lines[#lines + 1] = candidate_text(list[i], first) end
  if not all and #list > SHOWN then lines[#lines + 1] = ("  (%d more with --all)"):format(#list - SHOWN) end
end

local function add_advice(lines, found)
  local traffic, memory = advice.sorted(found.advice)
  local gathered = ("\nless traffic (%s of gathers per step now)"):format(size(found.total.gathered))
  add_list(lines, gathered, traffic, "traffic", found.all)
  add_list(lines, ("\nless memory (a peak of %s now)"):format(size(found.peak_bytes)), memory, "peak", found.all)
  local refused = {}
  for _, candidate in ipairs(found.advice) do
    if candidate.refused then refused[#refused + 1] = candidate end
  end
  add_list(lines, "\nrefused", refused, "peak", found.all)
  if #traffic + #memory == 0 then lines[#lines + 1] = "\nno other decision of those tried would save anything" end
end

-- ---- all of it --------------------------------------------------------------------------------------------------

---@param found moonshard.Explanation
---@return string
function show.text(found)
  local lines = { ("explain: rank %d of %d, mesh %s; bytes of this rank and one step of %d micro-batch%s"):format(
    found.rank, found.world, found.mesh, found.micro_batches, found.micro_batches == 1 and "" or "es"), found.nodes }
  if found.better_mesh then lines[#lines + 1] = better_mesh.text(found.better_mesh) end
  if found.tensor_across_nodes then lines[#lines + 1] = better_mesh.text_of_tensor(found.tensor_across_nodes) end
  for _, warning in ipairs(found.shadowed) do lines[#lines + 1] = "warning: " .. warning end
  for _, rule in ipairs(found.unmatched) do
    lines[#lines + 1] = ("matches nothing: %s: %s: rule %s, which is optional"):format(rule.where or "?", rule.policy,
      rule.pattern)
  end
  for _, policy in ipairs(policies.shown) do
    local rows = found.decisions[policy.name]
    if rows then add_table(lines, policy, rows, found.all) end
  end
  add_conversions(lines, found)
  add_losses(lines, found)
  add_muon(lines, found)
  add_peak(lines, found)
  add_exposed(lines, found)
  add_advice(lines, found)
  return table.concat(lines, "\n") .. "\n"
end

return show
