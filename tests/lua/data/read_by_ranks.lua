-- Batches read as by several ranks, of which each saves its state on the way and goes on from it, and put together as
-- one rank reads them.

local fixture = require("lua.support.fixture")
local json = require("moonshard.base.text.json")

---@param size integer of the world
---@param o { make: (fun(): table), rows: (fun(data: table, steps: integer): any[]), steps: integer, stop: integer,
---  global_batch: integer } data of ms.data, its next rows, all steps, and after which of them it is saved
---@return any[] rows of all ranks, in the order of one
---@return string[] states as JSON, by rank from 1
return function(size, o)
  local whole, states, per = {}, {}, o.global_batch / size
  for rank = 0, size - 1 do
    fixture.as_rank(rank, size, function()
      local data = o.make()
      local list = o.rows(data, o.stop)
      states[rank + 1] = json.encode(data:state())
      local resumed = o.make()
      resumed:load_state(json.decode(states[rank + 1]))
      for _, row in ipairs(o.rows(resumed, o.steps - o.stop)) do list[#list + 1] = row end
      assert(#list == o.steps * per, "a rank has other rows than its own")
      for i, row in ipairs(list) do
        local step = math.floor((i - 1) / per)
        whole[step * o.global_batch + rank * per + (i - 1) % per + 1] = row
      end
    end)
  end
  return whole, states
end
