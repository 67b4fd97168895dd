-- Checks a recipe: runs its first steps on many ranks under its own rules, then on a single reference rank with the
-- same global batches, and compares the two.

local C = require("moonshard.base.ffi").C
local files = require("moonshard.check.files")
local reference = require("moonshard.shard.reference")
local status = require("moonshard.base.exit_status")
local report = require("moonshard.check.report")
local watch = require("moonshard.check.watch")

local check = {}

---@class moonshard.CheckOptions
---@field ranks integer of this host
---@field node integer 0 where the verdict is given: on the first host, if ranks are on several
---@field nodes integer
---@field steps integer
---@field rtol number?
---@field launch fun(one: boolean, body: fun(recipe: function)): integer starts the ranks of this host, or one rank
---  alone, which run body around the recipe; returns the exit status

-- Makes both runs with the given number of steps. Returns the status of the first that failed, or both results. Other
-- nodes than the first only take part in the run of many ranks.
local function run_both(folder, o, steps)
  local errors = require("moonshard.base.error")
  local function watched(recipe) watch.run(recipe, { folder = folder, steps = steps, rtol = o.rtol }, errors.locate) end
  local ended = o.launch(false, watched)
  if ended ~= status.OK or o.node > 0 then return ended end
  local all = files.read_result(folder .. "/0", false).ranks
  ended = o.launch(true, function(recipe)
    reference.begin(all)
    watched(recipe)
  end)
  if ended ~= status.OK then return ended end
  local wrong = {}
  for rank = 0, all - 1 do
    for _, text in ipairs(files.read_result(("%s/%d"):format(folder, rank), false).wrong) do
      wrong[#wrong + 1] = ("rank %d: %s"):format(rank, text)
    end
  end
  local ranks, one = files.read_result(folder .. "/0", true), files.read_result(folder .. "/one", true)
  return ended, report.of(ranks, one, { rtol = o.rtol, wrong = wrong }), ranks
end

local function find(findings, what)
  for _, finding in ipairs(findings) do
    if finding.what == what then return finding end
  end
end

-- The first step after which a parameter differs. Runs are reproducible, so a shorter run is a prefix of a longer one.
-- Other nodes make one run only.
local function first_parameter(folder, o, found)
  local low, high, first = 0, found.steps, find(found.findings, "parameter")
  while first and high - low > 1 and o.nodes == 1 do
    local middle = math.floor((low + high) / 2)
    local ended, shorter = run_both(folder, o, middle)
    if ended ~= status.OK then return first end
    local earlier = find(shorter.findings, "parameter")
    if earlier then high, first = middle, earlier else low = middle end
  end
  return first
end

---Runs a check.
---@param o moonshard.CheckOptions
---@return integer status not 0 when one of the runs failed, which has printed the reason
---@return moonshard.Verdict? first_parameter: the first tensor that differs, at the first step where one does
---@return moonshard.CheckedRun? the run of rank 0; as the verdict, only on the first node
function check.run(o)
  local folder = files.temporary_folder()
  local ok, ended, found, ranks = pcall(function()
    local first_status, compared, of_ranks = run_both(folder, o, o.steps)
    if compared then compared.first_parameter = first_parameter(folder, o, compared) end
    return first_status, compared, of_ranks
  end)
  files.remove(folder, o.nodes > 1 and C.MS_MAX_RANKS or o.ranks)
  if not ok then error(ended, 0) end
  return ended, found, ranks
end

return check
