-- Every campaign, in the order in which they share the time: `make soak` runs many cases of each, the specs a few.

local list = {
  require("soak.blocked"), require("soak.lua_errors"), require("soak.descriptors"), require("soak.full_disks"),
  require("soak.limits"), require("soak.hosts"),
}
for _, campaign in ipairs(require("soak.programs")) do list[#list + 1] = campaign end

return list
