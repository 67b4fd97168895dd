-- Predicted against published training speeds: luajit tests/bench/price/published.lua [ROWS [WRITE [CLUSTER]]]
--
-- Every published row becomes a plan (training_plans.lua) whose step is priced on the described cluster of its stack
-- (training_clusters.lua). Constants are fitted on some rows and judged on others: four folds, small runs for large
-- ones, one row of a cluster whose other constants come from another, and pairs of FSDP and HSDP whose order must be
-- right. With ROWS, a table of the same columns, the shipped rows fit and its rows are judged; CLUSTER describes their
-- hardware. With WRITE, a folder, descriptions of what was fitted are written there.

local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
package.path = folder .. "?.lua;" .. package.path
local errors = require("error_table")
local fitted_stacks = require("fitted_stacks")
local training_model = require("training_model")
local training_rows = require("training_rows")

local SHIPPED = folder .. "data/published_training_speed.csv"
local FEWEST_ROWS = fitted_stacks.FEWEST_ROWS
local WORTH_KNOWING = 0.03 -- a relative difference of two speeds that a plan should foresee

local short = fitted_stacks.short

local function append(list, more)
  for _, one in ipairs(more) do list[#list + 1] = one end
  return list
end

local function filter(runs, keep)
  local kept = {}
  for i, run in ipairs(runs) do
    if keep(run, i) then kept[#kept + 1] = run end
  end
  return kept
end

local function table_row(name, list) return { name = name, errors = errors.summarize(list) } end

local function print_refused(refused)
  for _, one in ipairs(refused) do print(("  %4d  %s"):format(one.rows, one.why)) end
end

local function print_largest(list, n)
  local sorted = append({}, list)
  local function size(one) return math.abs(math.log(one.predicted / one.measured)) end
  table.sort(sorted, function(a, b) return size(a) > size(b) end)
  for i = 1, math.min(n, #sorted) do
    local one = sorted[i]
    print(("    %+6.1f %%  %s: %s"):format(100 * (one.predicted / one.measured - 1), short(one.run.row.stack),
      one.run.row.label))
  end
end

-- ---- parts -----------------------------------------------------------------------------------------------------

local function judge(stack, train, test, from)
  local constants = training_model.fit(filter(stack.runs, train), stack.description, from)
  return training_model.predictions(filter(stack.runs, test), stack.description, constants)
end

-- Nothing fitted: what `moonshard price` says of these runs.
local function as_shipped(stacks)
  local rows = {}
  for _, stack in ipairs(stacks) do
    if #stack.runs >= FEWEST_ROWS then
      local list = training_model.priced(stack.runs, stack.description:struct())
      rows[#rows + 1] = table_row(short(stack.name), list)
    end
  end
  errors.print("Descriptions as they are shipped, nothing fitted", rows)
end

-- With a folder, each stack's description is written there, with the errors as its accuracy.
local function cross_validate(stacks, write)
  local rows, all, mpt = {}, {}, {}
  for _, stack in ipairs(stacks) do
    if #stack.runs >= FEWEST_ROWS then
      local list = fitted_stacks.folds(stack)
      if write then fitted_stacks.write(stack, write, list) end
      rows[#rows + 1] = table_row(short(stack.name), list)
      append(all, list)
      if stack.name:find("llm%-foundry") then append(mpt, list) end
    end
  end
  if #mpt > 0 then rows[#rows + 1] = table_row("all MPT", mpt) end
  rows[#rows + 1] = table_row("all", all)
  errors.print(("Each row by the others: %d folds"):format(fitted_stacks.FOLDS), rows)
  print("  largest errors:")
  print_largest(all, 12)
end

-- Rows of at most so many GPUs predict those of more.
local SMALL_TO_LARGE = {
  { "llm%-foundry.*H100", 16 }, { "llm%-foundry.*H100", 32 }, { "llm%-foundry.*A100.*40GB", 16 },
  { "scaling_mn5", 32 }, { "scaling_mn5", 64 }, { "scaling_leonardo", 64 },
}

local function extrapolate(stacks)
  local rows = {}
  for _, case in ipairs(SMALL_TO_LARGE) do
    for _, stack in ipairs(stacks) do
      local function is_small(run) return run.row.gpus <= case[2] end
      if stack.name:find(case[1]) then
        local list = judge(stack, is_small, function(run) return not is_small(run) end)
        rows[#rows + 1] = table_row(("%s: up to %d GPUs for more"):format(short(stack.name), case[2]), list)
      end
    end
  end
  errors.print("Large runs by small ones", rows)
end

-- Another cluster, its description and one row: which stack lends its constants.
local LENT = {
  { "llm%-foundry.*A100.*80GB", "llm%-foundry.*A100.*40GB" },
  { "llm%-foundry.*A100.*40GB", "llm%-foundry.*A100.*80GB" },
  { "scaling_mn5", "llm%-foundry.*H100" }, { "scaling_leonardo", "llm%-foundry.*A100.*40GB" },
  { "torchtitan.*A100", "llm%-foundry.*A100.*80GB" }, { "KempnerForge.*mfu.*compiled", "llm%-foundry.*H100" },
}

local function find_stack(stacks, pattern)
  for _, stack in ipairs(stacks) do
    if stack.name:find(pattern) then return stack end
  end
end

-- The run that is nearest to all others in size of model, sequence, batch and GPUs: one that a user would measure.
local function typical(runs)
  local function place(row)
    return { math.log(row.layers * row.dim ^ 2), math.log(row.seq), math.log(row.seq * row.micro_batch),
      math.log(row.gpus) }
  end
  local best, least = 1, math.huge
  for i, run in ipairs(runs) do
    local here, sum = place(run.row), 0
    for _, other in ipairs(runs) do
      for k, x in ipairs(place(other.row)) do sum = sum + math.abs(x - here[k]) end
    end
    if sum < least then best, least = i, sum end
  end
  return best
end

-- The errors of all rows but the one that adapts another stack's constants.
local function with_one_row(stack, constants, i)
  return judge(stack, function(_, k) return k == i end, function(_, k) return k ~= i end, constants)
end

local function with_any_row(stack, constants)
  local list, stride = {}, math.max(1, math.floor(#stack.runs / 8))
  for i = 1, #stack.runs, stride do append(list, with_one_row(stack, constants, i)) end
  return list
end

local function transfer(stacks)
  local rows = {}
  for _, case in ipairs(LENT) do
    local stack, lender = find_stack(stacks, case[1]), find_stack(stacks, case[2])
    if stack and lender then
      local constants = training_model.fit(lender.runs, lender.description)
      local name = ("%s, from %s"):format(short(stack.name), short(lender.name))
      local without = training_model.predictions(stack.runs, stack.description, constants)
      rows[#rows + 1] = table_row(name .. ": no row", without)
      rows[#rows + 1] = table_row(name .. ": a typical row", with_one_row(stack, constants, typical(stack.runs)))
      rows[#rows + 1] = table_row(name .. ": any of 8 rows", with_any_row(stack, constants))
    end
  end
  errors.print("Another cluster: its description, another stack's constants, and no row or one row of its own", rows)
end

-- Runs that differ only in how they divide the same GPUs: by everything else.
local function families(runs)
  local by, order = {}, {}
  for _, run in ipairs(runs) do
    local r = run.row
    local key = table.concat({ r.model, r.gpus, r.tensor, r.micro_batch, r.grad_accum, r.seq, r.recompute,
      r.precision }, "|")
    if not by[key] then
      by[key] = {}
      order[#order + 1] = by[key]
    end
    table.insert(by[key], run)
  end
  return order
end

local function pairs_of(runs)
  local list = {}
  for _, family in ipairs(families(runs)) do
    for i = 1, #family do
      for k = i + 1, #family do
        local a, b = family[i], family[k]
        if a.row.shard ~= b.row.shard and math.abs(math.log(a.row.measured / b.row.measured)) > WORTH_KNOWING then
          list[#list + 1] = { a, b }
        end
      end
    end
  end
  return list
end

local function winners(stacks)
  print(("FSDP or HSDP: pairs of runs that differ by more than %d %%, constants of all rows of the stack"):format(
    100 * WORTH_KNOWING))
  local right, total = 0, 0
  for _, stack in ipairs(stacks) do
    local found = pairs_of(stack.runs)
    local constants = #found > 0 and training_model.fit(stack.runs, stack.description)
    for _, pair in ipairs(found) do
      local of = training_model.predictions(pair, stack.description, constants)
      local measured = of[1].measured / of[2].measured
      local predicted = of[1].predicted / of[2].predicted
      local is_right = (measured > 1) == (predicted > 1)
      right, total = right + (is_right and 1 or 0), total + 1
      print(("  %-26s %-44s against shard %-4d measured %.2fx, predicted %.2fx  %s"):format(short(stack.name),
        pair[1].row.label, pair[2].row.shard, measured, predicted, is_right and "right" or "WRONG"))
    end
  end
  print(("  %d of %d right"):format(right, total))
end

-- ---- other rows ------------------------------------------------------------------------------------------------

-- The shipped stack that fits another one: the same document and GPU, else the same kind of GPU.
local function nearest(stacks, stack)
  for _, shipped in ipairs(stacks) do
    if shipped.name == stack.name then return shipped, "its own stack" end
  end
  for _, pattern in ipairs({ "A100", "H" }) do
    for _, shipped in ipairs(stacks) do
      if stack.runs[1].row.gpu_type:find(pattern) and shipped.runs[1].row.gpu_type:find(pattern)
          and #shipped.runs >= FEWEST_ROWS then
        return shipped, short(shipped.name)
      end
    end
  end
  return nil, "the usual ones"
end

-- The constants that begin a fit of other rows: those of the nearest shipped stack.
local function lent_by(stacks, stack)
  local shipped, whose = nearest(stacks, stack)
  if not shipped then return nil, whose end
  return { constants = training_model.fit(shipped.runs, shipped.description), name = short(shipped.name) }, whose
end

local function read_file(path, hardware)
  local rows, refused = training_rows.read(path)
  if next(refused) then
    print("rows that no plan can stand for:")
    print_refused(refused)
  end
  if #rows == 0 then error(path .. ": no row that a plan can stand for", 0) end
  return training_model.stacks(rows, hardware)
end

-- Judges the rows of a file by constants of the shipped ones. With a folder, writes the descriptions that they fit.
local function judge_file(stacks, path, write, hardware)
  local all, lines = {}, {}
  for _, stack in ipairs(read_file(path, hardware)) do
    local lent, whose = lent_by(stacks, stack)
    local constants = lent and lent.constants or training_model.usual()
    local list = training_model.predictions(stack.runs, stack.description, constants)
    lines[#lines + 1] = table_row(("%s (constants: %s)"):format(short(stack.name), whose), list)
    append(all, list)
    if write then
      local held_out = #stack.runs >= FEWEST_ROWS and fitted_stacks.folds(stack, lent) or nil
      fitted_stacks.write(stack, write, held_out, lent)
    end
  end
  lines[#lines + 1] = table_row("all", all)
  errors.print("Rows of " .. path .. " by the shipped ones", lines)
  print("  largest errors:")
  print_largest(all, 12)
end

-- ---- main ------------------------------------------------------------------------------------------------------

local function print_selection(rows, refused)
  print(("%d rows that a plan can stand for; rows that none can:"):format(#rows))
  print_refused(refused)
  print("  outliers, left out:")
  for _, row in ipairs(rows) do
    if row.outlier then print(("    %s, %s: %s"):format(short(row.stack), row.label, row.outlier)) end
  end
end

local function given(i) return arg[i] ~= "" and arg[i] or nil end

local function main()
  io.stdout:setvbuf("line") -- fits take minutes
  local rows, refused = training_rows.read(SHIPPED)
  local stacks = training_model.stacks(rows)
  local path, write, hardware = given(1), given(2), given(3)
  if path then return judge_file(stacks, path, write, hardware) end
  if write then return cross_validate(stacks, write) end
  print_selection(rows, refused)
  as_shipped(stacks)
  cross_validate(stacks)
  extrapolate(stacks)
  transfer(stacks)
  winners(stacks)
end

main()
