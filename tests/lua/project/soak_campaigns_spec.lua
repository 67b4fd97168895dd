-- A small share of each campaign of `make soak`: the campaigns themselves must not rot while the project moves on.

local breadth = require("lua.support.breadth")
local campaigns = require("soak.campaigns")
local list = require("soak.all")

-- Cases of each. One of libFuzzer is a whole run of it, over all that it found before; tests/c/files/test_fuzz_inputs
-- reads the committed inputs in `make test`, which builds no fuzzer.
local SEED = 1
local function fuzzes(campaign) return campaign.name:find("^fuzz%-") ~= nil end
local function cases_of(campaign) return (fuzzes(campaign) or not breadth.all) and 1 or 4 end

-- What the address sanitizer can find; the other campaigns look at processes from outside.
local CHECKED = { api = true, handles = true }
local config = os.getenv("MOONSHARD_CONFIG")

describe("the campaign", function()
  for _, campaign in ipairs(list) do
    if config == "release" or CHECKED[campaign.name] then
      it(("%s passes %d of its cases from seed %d%s"):format(campaign.name, cases_of(campaign), SEED,
        fuzzes(campaign) and " #all" or ""), function()
        if campaign.skip then return pending(campaign.skip) end
        local lines = {}
        local well = campaigns.run({ campaign }, {
          seconds = 600, seed = SEED, cases = cases_of(campaign), brief = true,
          tell = function(line) lines[#lines + 1] = line end,
        })
        assert(well, table.concat(lines, "\n"))
      end)
    end
  end

  it("has a name of its own", function()
    local seen = {}
    for _, campaign in ipairs(list) do
      assert.is_nil(seen[campaign.name])
      seen[campaign.name] = true
    end
    assert.is_true(#list >= 13)
  end)
end)
