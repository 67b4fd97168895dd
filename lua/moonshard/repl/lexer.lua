-- Splits Lua text into tokens, so that the prompt can keep locals, point at mistakes and complete names.
--
-- LuaJIT decides whether text is valid; this lexer only has to be correct for valid text, and robust otherwise.

local lexer = {}

---@class moonshard.Token
---@field kind string "name", "keyword", "number", "string", "symbol"
---@field text string
---@field first integer position of its first byte
---@field last integer
---@field open boolean? an unterminated string
---@field content integer? for strings: position of the first byte inside the quotes

local KEYWORDS = {}
for word in ("and break do else elseif end false for function goto if in local nil not or repeat return then true "
  .. "until while"):gmatch("%S+") do
  KEYWORDS[word] = true
end
lexer.KEYWORDS = KEYWORDS

local SYMBOLS = { "^%.%.%.", "^%.%.", "^==", "^~=", "^<=", "^>=", "^::", "^." }

-- The last position of a long string or comment whose opening bracket ends at `at`, and whether it is unterminated.
local function long_end(source, at, level)
  local _, last = source:find("]" .. level .. "]", at + 1, true)
  return last or #source, last == nil
end

local function quoted_end(source, at, quote)
  local place = at + 1
  while place <= #source do
    local byte = source:sub(place, place)
    if byte == quote then return place, false end
    if byte == "\n" then return place - 1, true end
    place = place + (byte == "\\" and 2 or 1)
  end
  return #source, true
end

local function number_end(source, at)
  local _, last = source:find("^[%w%.]+", at)
  local hexadecimal = source:find("^0[xX]", at)
  if source:find(hexadecimal and "^[pP][+-]%d" or "^[eE][+-]%d", last) then
    _, last = source:find("^[+-]%w+", last + 1)
  end
  return last
end

-- The end of a comment that begins at `at`; nil if there is no comment.
local function comment_end(source, at)
  if source:sub(at, at + 1) ~= "--" then return nil end
  local _, bracket, level = source:find("^%-%-%[(=*)%[", at)
  if bracket then return (long_end(source, bracket, level)) end
  return (source:find("\n", at, true) or #source + 1) - 1
end

local function next_token(source, at)
  local _, last = source:find("^[%a_\128-\255][%w_\128-\255]*", at)
  if last then
    local text = source:sub(at, last)
    return { kind = KEYWORDS[text] and "keyword" or "name", text = text, first = at, last = last }
  end
  if source:find("^%.?%d", at) then return { kind = "number", first = at, last = number_end(source, at) } end
  local quote = source:match("^[\"']", at)
  if quote then
    local stop, open = quoted_end(source, at, quote)
    return { kind = "string", first = at, last = stop, open = open, content = at + 1 }
  end
  local _, bracket, level = source:find("^%[(=*)%[", at)
  if bracket then
    local stop, open = long_end(source, bracket, level)
    return { kind = "string", first = at, last = stop, open = open, content = bracket + 1 }
  end
  for _, symbol in ipairs(SYMBOLS) do
    _, last = source:find(symbol, at)
    if last then return { kind = "symbol", first = at, last = last } end
  end
end

---@param source string
---@return moonshard.Token[]
function lexer.tokens(source)
  local tokens, at = {}, 1
  while true do
    at = source:find("%S", at)
    if not at then return tokens end
    local comment = comment_end(source, at)
    if comment then
      at = comment + 1
    else
      local token = next_token(source, at)
      token.text = token.text or source:sub(token.first, token.last)
      tokens[#tokens + 1] = token
      at = token.last + 1
    end
  end
end

local OPENS = { ["function"] = true, ["do"] = true, ["if"] = true, ["repeat"] = true }
local CLOSES = { ["end"] = true, ["until"] = true }

-- The index of the last name of a list `a, b, c` that begins at index i; nil if there is no list.
local function last_name(tokens, i)
  if not tokens[i] or tokens[i].kind ~= "name" then return nil end
  while tokens[i + 1] and tokens[i + 1].text == "," and tokens[i + 2] and tokens[i + 2].kind == "name" do i = i + 2 end
  return i
end

---Whether a chunk itself returns, and not only functions in it.
---@param source string
---@return boolean
function lexer.returns(source)
  local open, functions = {}, 0
  for _, token in ipairs(lexer.tokens(source)) do
    if token.kind == "keyword" then
      if OPENS[token.text] then
        open[#open + 1] = token.text
        functions = functions + (token.text == "function" and 1 or 0)
      elseif CLOSES[token.text] then
        functions = functions - (table.remove(open) == "function" and 1 or 0)
      elseif token.text == "return" and functions == 0 then
        return true
      end
    end
  end
  return false
end

---Turns the locals of a chunk's outermost block into globals, so that they live as long as its environment: `local
---x = 1` becomes `x = 1`. Lines and columns do not change, except after a `local x` without a value.
---@param source string
---@return string
function lexer.keep_locals(source)
  local tokens, pieces, copied, depth = lexer.tokens(source), {}, 1, 0
  local function replace(first, last, text)
    pieces[#pieces + 1] = source:sub(copied, first - 1)
    pieces[#pieces + 1] = text
    copied = last + 1
  end
  for i, token in ipairs(tokens) do
    local following = tokens[i + 1]
    if token.kind == "keyword" and OPENS[token.text] then depth = depth + 1 end
    if token.kind == "keyword" and CLOSES[token.text] then depth = depth - 1 end
    if token.kind == "keyword" and token.text == "local" and depth == 0 then
      local last = last_name(tokens, i + 1)
      if last or (following and following.text == "function") then
        replace(token.first, token.last, "     ")
      end
      if last and not (tokens[last + 1] and tokens[last + 1].text == "=") then
        replace(tokens[last].last + 1, tokens[last].last, " = nil")
      end
    end
  end
  pieces[#pieces + 1] = source:sub(copied)
  return table.concat(pieces)
end

---Whether LuaJIT's message means that the text is incomplete. A quoted string cannot continue on the next line.
---@param message string
---@return boolean
function lexer.is_incomplete(message)
  return message:find("near '<eof>'", 1, true) ~= nil and not message:find("unfinished string", 1, true)
end

---Whether a colon has white space after it, as the one that begins a block in Python. In Lua a method's name is there,
---and what a user of Python types next would complete nothing.
---@param text string
---@return boolean
function lexer.has_colon_of_python(text)
  for _, token in ipairs(lexer.tokens(text)) do
    if token.text == ":" and not text:find("^%S", token.last + 1) then return true end
  end
  return false
end

---The position of the word that makes a text invalid: it is on the line that LuaJIT reports, and the text up to this
---word is the shortest that cannot be completed.
---@param source string that does not compile
---@return integer place #source + 1 when something is missing at the end
function lexer.find_mistake(source)
  local _, whole = loadstring(source, "=")
  local line = tonumber(whole and whole:match("^:(%d+):")) or 1
  local at, number = 1, 1
  for _, token in ipairs(lexer.tokens(source)) do
    for _ in source:sub(at, token.first - 1):gmatch("\n") do number = number + 1 end
    at = token.first
    if number >= line then
      local _, message = loadstring(source:sub(1, token.last), "=")
      if message and not lexer.is_incomplete(message) then return token.first end
    end
  end
  return #source + 1
end

---Removes a `;` at the end of a text.
---@param source string
---@return string without, boolean was_there
function lexer.strip_semicolon(source)
  local tokens = lexer.tokens(source)
  local last = tokens[#tokens]
  if not last or last.text ~= ";" or last.kind ~= "symbol" then return source, false end
  return source:sub(1, last.first - 1) .. source:sub(last.last + 1), true
end

return lexer
