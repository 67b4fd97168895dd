-- A JSON list of objects, found in a text that comes piece by piece: each object is given as its text, so of a file of
-- any size one object at a time is in memory. Only what separates the objects is checked here; each is decoded by who
-- takes it.

local errors = require("moonshard.base.error")

local json_list = {}

---@class moonshard.JsonList
---@field path string for messages
---@field most integer bytes of an object
---@field visit fun(text: string, where: string)
---@field line integer that is being read
---@field item integer objects that have begun
---@field depth integer 0 before the list, 1 in it, more in an object
---@field expects "["|"{]"|",]"|"{"|"" the characters that may come next between objects; "": the list has ended
local List = {}
List.__index = List

---@param path string
---@param most integer
---@param visit fun(text: string, where: string)
---@return moonshard.JsonList
function json_list.new(path, most, visit)
  return setmetatable({
    path = path, most = most, visit = visit, line = 1, item = 0, depth = 0, expects = "[", parts = {}, held = 0,
    begun_at = 1, in_string = false, escaped = false,
  }, List)
end

---Where the object is that was begun last: "chats.json:7: item 3".
---@return string
function List:place() return ("%s:%d: item %d"):format(self.path, self.begun_at, self.item) end

local function keep(self, text)
  self.held = self.held + #text
  self.parts[#self.parts + 1] = text
  if self.held <= self.most then return end
  errors.invalid("%s has more than %d MiB, the most that an object of a list can have", self:place(),
    self.most / 2 ^ 20)
end

local function give(self)
  local text = table.concat(self.parts)
  self.parts, self.held = {}, 0
  self.visit(text, self:place())
end

local MEANING = {
  ["["] = "a list", ["{]"] = "an object or the end of the list", [",]"] = "a comma or the end of the list",
  ["{"] = "an object",
}

-- One character between objects.
local function between(self, text, at)
  local char = text:sub(at, at)
  if char == "\n" then self.line = self.line + 1 end
  if char:find("%s") or self.depth == 0 and char:find("[\239\187\191]") then return at + 1 end -- or a byte order mark
  if self.expects == "" then
    errors.invalid("%s:%d: text after the end of the list: a file has one list of objects, or one object a line",
      self.path, self.line)
  end
  if not self.expects:find(char, 1, true) then
    errors.invalid("%s:%d: after %d items: expected %s, not %q", self.path, self.line, self.item,
      MEANING[self.expects], char)
  end
  if char == "[" then
    self.depth, self.expects = 1, "{]"
  elseif char == "]" then
    self.expects = ""
  elseif char == "," then
    self.expects = "{"
  else
    self.depth, self.expects, self.item, self.begun_at = 2, ",]", self.item + 1, self.line
    keep(self, "{")
  end
  return at + 1
end

-- From `at` to the end of the object, or of the text.
local function inside(self, text, at)
  local from = at
  if self.escaped then self.escaped, at = false, at + 1 end
  while true do
    at = text:find(self.in_string and '["\\]' or '["{}%[%]\n]', at)
    if not at then break end
    local char = text:sub(at, at)
    if char == '"' then
      self.in_string = not self.in_string
    elseif char == "\\" then
      self.escaped = at == #text
      at = at + 1
    elseif char == "\n" then
      self.line = self.line + 1
    else
      self.depth = self.depth + ((char == "{" or char == "[") and 1 or -1)
      if self.depth == 1 then break end
    end
    at = at + 1
  end
  keep(self, text:sub(from, at))
  if not at then return #text + 1 end
  give(self)
  return at + 1
end

---@param text string the next piece
function List:add(text)
  local at = 1
  while at <= #text do
    at = (self.depth > 1 and inside or between)(self, text, at)
  end
end

---Raises if the list has not ended.
function List:finish()
  if self.expects == "" then return end
  errors.invalid("%s:%d: the list does not end: the file was cut short %s", self.path, self.line,
    self.depth > 1 and ("in item %d"):format(self.item) or ("after %d items"):format(self.item))
end

return json_list
