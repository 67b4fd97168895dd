-- Stacks and what is fitted on them: their short names, the errors of runs that were held out, and the descriptions
-- that are written.

local errors = require("error_table")
local fitted_description = require("fitted_description")
local training_model = require("training_model")

local fitted_stacks = {}

local FOLDS = 4
fitted_stacks.FOLDS = FOLDS
fitted_stacks.FEWEST_ROWS = 10 -- of a stack whose rows are divided into folds

local MPT = "what PyTorch's FSDP reached in 2023 on %s (MosaicML's MPT runs on %s GPUs)"

-- By what the stack's name contains: a short name, and those of the descriptions that come with the program.
local NAMES = {
  { "llm%-foundry.*A100.*40GB", "MPT, A100 40 GB", file = "a100-40x8-pytorch",
    about = MPT, on = "nodes of eight A100 40 GB" },
  { "llm%-foundry.*A100", "MPT, A100 80 GB", file = "a100-80x8-pytorch",
    about = MPT, on = "nodes of eight A100 80 GB" },
  { "llm%-foundry.*H100", "MPT, H100", file = "h100x8-3200g-pytorch", about = MPT, on = "nodes of eight H100" },
  { "scaling_mn5", "Modalities, MareNostrum 5", file = "marenostrum5-pytorch",
    about = "what PyTorch's FSDP reached on %s (Modalities' runs on %s GPUs)", on = "MareNostrum 5" },
  { "scaling_leonardo", "Modalities, Leonardo" }, { "torchtitan.*A100", "torchtitan, A100" },
  { "KempnerForge.*mfu.*compiled", "KempnerForge, H200" }, { "KempnerForge.*mfu", "KempnerForge, H200, not compiled" },
  { "KempnerForge", "KempnerForge, H200, validation" },
  { "maximizing.*A100", "IBM blog, A100" }, { "maximizing.*H100", "IBM blog, H100" }, { "fms%-fsdp", "fms-fsdp, A100" },
  { "pytorch/ao", "torchao, H100" },
}

local function known_as(stack)
  for _, known in ipairs(NAMES) do
    if stack:find(known[1]) then return known end
  end
  return { nil, stack }
end

---@param stack string
---@return string
function fitted_stacks.short(stack) return known_as(stack)[2] end

-- ---- fits -------------------------------------------------------------------------------------------------------

local function fit_of(stack, runs, lent)
  local before = lent and lent.constants or training_model.usual()
  return { description = stack.description, runs = runs, before = before,
    before_source = lent and "as " .. lent.name or "usual of PyTorch",
    constants = training_model.fit(runs, stack.description, before) }
end

---Every row predicted by the rows of the other folds, through the description that they would write. Neighbours in the
---table are alike, so each goes to another fold.
---@param stack moonshard.bench.Stack
---@param lent { constants: table<string, number>, name: string }? fitted elsewhere; default: the usual ones
---@return { predicted: number, measured: number, run: moonshard.bench.Run }[]
function fitted_stacks.folds(stack, lent)
  local list = {}
  for fold = 0, FOLDS - 1 do
    local train, test = {}, {}
    for i, run in ipairs(stack.runs) do table.insert(i % FOLDS == fold and test or train, run) end
    local described = fitted_description.load(fit_of(stack, train, lent))
    for _, one in ipairs(training_model.priced(test, described:struct())) do list[#list + 1] = one end
  end
  return list
end

-- ---- descriptions -----------------------------------------------------------------------------------------------

-- "8 to 64"
local function gpus_of(runs)
  local least, most = math.huge, 0
  for _, run in ipairs(runs) do least, most = math.min(least, run.row.gpus), math.max(most, run.row.gpus) end
  return least == most and tostring(least) or ("%d to %d"):format(least, most)
end

-- "MPT, A100 40 GB": "mpt-a100-40-gb"
local function file_name(known)
  return known.file or (known[2]:lower():gsub("[^%w]+", "-"):gsub("^%-", ""):gsub("%-$", ""))
end

---Writes the description that a stack's runs fit, and says what it is worth.
---@param stack moonshard.bench.Stack
---@param folder string
---@param held_out { predicted: number, measured: number }[]? of fitted_stacks.folds; nil: there are too few runs
---@param lent { constants: table<string, number>, name: string }?
function fitted_stacks.write(stack, folder, held_out, lent)
  local known, fit = known_as(stack.name), fit_of(stack, stack.runs, lent)
  local path = ("%s/%s.lua"):format(folder, file_name(known))
  local summary = held_out and errors.summarize(held_out)
  fit.about = known.about and known.about:format(known.on, gpus_of(stack.runs))
  fit.document = stack.runs[1].row.document:match("^%S+")
  fit.accuracy = summary and summary.p90 / 100
  fitted_description.write(fit, path)
  print(("%s: fitted on %d run%s, from constants %s; %s"):format(path, #stack.runs, #stack.runs == 1 and "" or "s",
    fit.before_source, summary and ("accuracy %.1f %% of runs held out"):format(summary.p90)
      or ("no accuracy: %d runs have one"):format(fitted_stacks.FEWEST_ROWS)))
end

return fitted_stacks
