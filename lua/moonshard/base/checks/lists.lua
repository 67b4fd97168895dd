-- Lists that recipes give. A nil among items, as `condition and value or nil` leaves it, would end the list for # and
-- ipairs, so that what comes after it is dropped; so would a field next to items. Every public function checks its
-- arguments here before it reads them (checks/arguments.lua), and the options among them (checks/options.lua).
--
-- Tables with a metatable are objects, and so are those with a method, which can have fields next to items; those
-- without items are records, which the function knows.

local errors = require("moonshard.base.error")

local lists = {}

-- Options, by function, in which nil means an item's default.
local with_defaults = {}
local NONE = {}

local function is_plain(value) return type(value) == "table" and getmetatable(value) == nil end

-- How many items a table has, the last one's position, a number that is no position, a field's name, and whether a
-- field is a method.
local function survey(list)
  local count, last, odd, field, has_method = 0, 0, nil, nil, false
  for key, value in pairs(list) do
    if type(key) ~= "number" then
      field, has_method = key, has_method or type(value) == "function"
    elseif key % 1 ~= 0 or key < 1 then
      odd = key
    else
      count = count + 1
      if key > last then last = key end
    end
  end
  return count, last, odd, field, has_method
end

local function text_of_hole(list)
  local at = 1
  while list[at] ~= nil do at = at + 1 end
  local after = at + 1
  while list[after] == nil do after = after + 1 end
  return ("item %d is nil, and item %d comes after it: leave nil out of the list"):format(at, after)
end

local NO_FIELD = "a list has no field %s: leave it out, or write it into the table of an item"
local MAX_NESTED = 64 -- a list that contains itself has no end

-- What is wrong with a list or one in it, and in which: "[2]".
local function wrong_in(list, has_fields, depth)
  local count, last, odd, field, has_method = survey(list)
  if count == 0 or depth > MAX_NESTED then return nil end
  if last > count then return text_of_hole(list), "" end
  if odd then return ("item %g of a list: items are counted from 1"):format(odd), "" end
  if field ~= nil and not has_fields and not has_method then return NO_FIELD:format(tostring(field)), "" end
  for i = 1, count do
    local item = list[i]
    if is_plain(item) then
      local wrong, place = wrong_in(item, true, depth + 1)
      if wrong then return wrong, ("[%d]%s"):format(i, place) end
    end
  end
end

---Refuses a list with nil before its last item or in one of its lists. Fields next to its items, which can be options,
---are left to the function.
---@param who string the function, as the user wrote it
---@param value any anything but a list passes
function lists.check(who, value)
  if not is_plain(value) then return end
  local wrong, place = wrong_in(value, true, 1)
  if wrong then errors.invalid("%s: %s%s", who, place ~= "" and ("item %s: "):format(place) or "", wrong) end
end

---A list of which only the items are read: fields next to them are refused.
---@generic T: table
---@param who string
---@param list T
---@return T list
function lists.items(who, list)
  if not is_plain(list) then return list end
  for key in pairs(list) do
    if type(key) ~= "number" then errors.invalid("%s: %s", who, NO_FIELD:format(tostring(key))) end
  end
  return list
end

---In this option nil means an item's default, as None does in PyTorch's eps=(None, 1e-3).
---@param who string the function, as a recipe calls it
---@param option string
function lists.have_defaults(who, option)
  with_defaults[who] = with_defaults[who] or {}
  with_defaults[who][option] = true
end

---As lists.check for the lists among named options, which have no fields next to their items.
---@param who string
---@param given any
function lists.check_fields(who, given)
  if not is_plain(given) then return end
  local has_defaults = with_defaults[who] or NONE
  for name, value in pairs(given) do
    if type(name) == "string" and is_plain(value) and not has_defaults[name] then
      local wrong, place = wrong_in(value, false, 1)
      if wrong then errors.invalid("%s: %s%s: %s", who, name, place, wrong) end
    end
  end
end

return lists
