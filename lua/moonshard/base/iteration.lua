-- Makes ipairs over objects that are not lists an error. LuaJIT's own ipairs sees only the array part of a table, so a
-- loop over a loader or a tensor would silently do nothing. This one reads the metatable first, as Lua 5.2 does.

local errors = require("moonshard.base.error")

local iteration = {}

local plain = ipairs

-- luacheck: push ignore 121
ipairs = function(list)
  local meta = type(list) == "table" and getmetatable(list)
  local own = type(meta) == "table" and rawget(meta, "__ipairs")
  if own then return own(list) end
  return plain(list)
end
-- luacheck: pop

---Makes ipairs over objects of a class an error.
---@param class table their metatable
---@param advice string what to write instead
function iteration.refuse_ipairs(class, advice)
  function class.__ipairs()
    errors.invalid("ipairs over %s, which is not a list: %s", rawget(class, "__name"), advice)
  end
end

return iteration
