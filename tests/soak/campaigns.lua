-- Campaigns of random cases in turns, each for its share of the time, and what came of them. A case depends on its seed
-- alone, so a campaign's name and the seed repeat it.

local clock = require("moonshard.base.clock")
local draw = require("fuzz.draw")

local campaigns = {}

---@class Campaign
---@field name string
---@field skip string? why it cannot run here
---@field note string? what of it cannot run here
---@field run fun(d: table, seconds: number, brief: boolean): string?, string? draws a case and runs it, for no longer
---  than about `seconds` where a case has no length of its own; if brief, as little of it as finds anything: what is
---  wrong, if anything, and what the case was

---@class SoakSettings
---@field seconds number for all campaigns
---@field seed integer of each campaign's first case; the next have the next seeds
---@field cases integer? at most so many of each campaign
---@field brief boolean? a case is as short as can be
---@field only string? campaigns whose name contains this
---@field tell fun(line: string)

local function run_campaign(campaign, seconds, settings)
  if campaign.note then settings.tell(("note  %-16s %s"):format(campaign.name, campaign.note)) end
  local finish, passed, failed = clock.now() + seconds, 0, 0
  repeat
    local seed = settings.seed + passed + failed
    local ok, failure, case = pcall(campaign.run, draw.new(seed), finish - clock.now(), settings.brief or false)
    if not ok then failure, case = "raised " .. tostring(failure), nil end
    if failure then
      failed = failed + 1
      settings.tell(("FAIL  %s, seed %d%s: %s\n      again: make soak ONLY=%s SEED=%d CASES=1"):format(campaign.name,
        seed, case and " (" .. case .. ")" or "", failure, campaign.name, seed))
    else
      passed = passed + 1
    end
  until clock.now() >= finish or passed + failed >= (settings.cases or math.huge)
  settings.tell(("%s  %-16s %5d cases, %d failed"):format(failed == 0 and "pass" or "FAIL", campaign.name,
    passed + failed, failed))
  return passed, failed
end

---Runs the campaigns; the last line that it tells is "N passed, N failed".
---@param list Campaign[]
---@param settings SoakSettings
---@return boolean well something passed and nothing failed
function campaigns.run(list, settings)
  local able = {}
  for _, campaign in ipairs(list) do
    if campaign.name:find(settings.only or "", 1, true) then
      if campaign.skip then settings.tell(("skip  %-16s %s"):format(campaign.name, campaign.skip))
      else able[#able + 1] = campaign end
    end
  end
  local passed, failed, finish = 0, 0, clock.now() + settings.seconds
  for i, campaign in ipairs(able) do
    local p, f = run_campaign(campaign, (finish - clock.now()) / (#able - i + 1), settings)
    passed, failed = passed + p, failed + f
  end
  settings.tell(("%d passed, %d failed"):format(passed, failed))
  return passed > 0 and failed == 0
end

return campaigns
