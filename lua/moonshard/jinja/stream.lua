-- A template's tokens with a place in them: what parsers of expressions and of statements read from, and what they note
-- about the template on the way.

local faults = require("moonshard.jinja.faults")
local lexer = require("moonshard.jinja.lexer")

---@class moonshard.jinja.Stream
---@field token moonshard.jinja.Token the current one
---@field mentioned table<string, boolean> names of variables and attributes, and texts, in the template
---@field nested integer how deep the parsers are in each other
---@field doubts { line: integer, message: string }[] faults, unless what they are in is left out
---@field loops integer how many loops are open where the parser is
local Stream = {}
Stream.__index = Stream

local MAX_NESTED = 100

---@param source string
---@return moonshard.jinja.Stream
local function new(source)
  local tokens = lexer.tokens(source)
  return setmetatable({
    tokens = tokens, at = 1, token = tokens[1], mentioned = {}, nested = 0, doubts = {}, loops = 0,
  }, Stream)
end

---Moves past the current token.
---@return moonshard.jinja.Token the one that was current
function Stream:take()
  local token = self.token
  self.at = math.min(self.at + 1, #self.tokens)
  self.token = self.tokens[self.at]
  return token
end

---The token after the current one.
---@return moonshard.jinja.Token
function Stream:following() return self.tokens[math.min(self.at + 1, #self.tokens)] end

---@param word string
---@return boolean whether the current token is this name
function Stream:is_word(word) return self.token.type == "name" and self.token.value == word end

---Takes a name if it is the current token.
---@param word string
---@return boolean
function Stream:take_word(word)
  if not self:is_word(word) then return false end
  self:take()
  return true
end

---Takes a token if it is of this type.
---@param type_ string
---@return boolean
function Stream:take_if(type_)
  if self.token.type ~= type_ then return false end
  self:take()
  return true
end

---The current token, for messages.
---@return string
function Stream:shown()
  local token = self.token
  if token.type == "end" then return "the end of the template" end
  return token.value ~= nil and tostring(token.value) or token.type
end

---@param format string
---@param ... any
function Stream:fail(format, ...) faults.at(self.token.line, format, ...) end

---Takes a token of this type; another is a fault.
---@param type_ string
---@return moonshard.jinja.Token
function Stream:expect(type_)
  if self.token.type ~= type_ then self:fail("%s where %s is expected", self:shown(), type_) end
  return self:take()
end

---Takes a name that must be there.
---@param word string
function Stream:expect_word(word)
  if not self:take_word(word) then self:fail("%s where %s is expected", self:shown(), word) end
end

---Notes a name or a text of the template, and the parts of a path of attributes.
---@param text string
function Stream:mention(text)
  self.mentioned[text] = true
  if text:find("[.,]") then
    for part in text:gmatch("[^.,]+") do self.mentioned[part] = true end
  end
end

---Notes what is a fault unless it turns out to depend on a condition.
---@param line integer
---@param message string
function Stream:doubt(line, message) self.doubts[#self.doubts + 1] = { line = line, message = message } end

---Forgets doubts that depend on a condition.
---@param kept integer how many there were before it
function Stream:drop_doubts(kept)
  for i = kept + 1, #self.doubts do self.doubts[i] = nil end
end

---Raises the first doubt that is left.
function Stream:settle()
  local first = self.doubts[1]
  if first then faults.at(first.line, "%s", first.message) end
end

---Enters what nests, for parsers that call themselves.
function Stream:enter()
  self.nested = self.nested + 1
  if self.nested > MAX_NESTED then self:fail("the template nests more than %d deep", MAX_NESTED) end
end

function Stream:leave() self.nested = self.nested - 1 end

return new
