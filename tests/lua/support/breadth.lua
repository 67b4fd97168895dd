-- How many cases of a kind run. `make test-all` runs all of them in the release build. `make test` runs one of each
-- list, which stands for all, and so do the sanitizers, where a run is up to ten times slower.

local breadth = {}

---Whether all cases run.
breadth.all = os.getenv("MOONSHARD_CASES") ~= "few" and os.getenv("MOONSHARD_CONFIG") == "release"

---A list of settings to run with, or the last of them, which stands for all.
---@generic T
---@param list T[]
---@return T[]
function breadth.few(list) return breadth.all and list or { list[#list] } end

return breadth
