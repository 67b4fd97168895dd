-- os.exit in a recipe: a status that only the recipe knows would end a run without a word, so the commands take the
-- call and say what happened.

local errors = require("moonshard.base.error")

local exit = {}

local real_exit = os.exit

---Ends this process with a status that the commands know.
---@param status integer
function exit.now(status)
  io.flush()
  real_exit(status)
end

---From here on os.exit calls `ended`, and ends this process with the status that it returns.
---@param ended fun(call: string, succeeds: boolean): integer call: "recipe.lua:3: os.exit(7) was called"
function exit.replace(ended)
  os.exit = function(code) -- luacheck: ignore 122
    local succeeds = code == nil or code == true or code == 0
    local where = errors.caller()
    local given = code == nil and "" or tostring(code)
    local call = ("%sos.exit(%s) was called"):format(where and where .. ": " or "", given)
    exit.now(ended(call, succeeds))
  end
end

return exit
