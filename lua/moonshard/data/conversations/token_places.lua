-- Which bytes of a text each of its tokens is: for texts that are encoded whole, of which parts are trained on. A
-- tokenizer says only what a token decodes to, so tokens are laid along the text, one after the other. Some tokenizers
-- add a blank before words, which is not in the text, and some rewrite it: NFC joins a letter and its accent. There the
-- shortest part of the text is sought that the tokenizer alone would write as the next tokens are, and is theirs.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")

local token_places = {}

---@class moonshard.TokenPlaces
---@field tokenizer moonshard.Tokenizer
---@field texts table<integer, string> of tokens within a text, by id
---@field anchor integer a token before which others are decoded, so that no decoder takes them for the first
---@field anchor_text string
local Places = {}
Places.__index = Places

---@param tokenizer moonshard.Tokenizer
---@return moonshard.TokenPlaces
function token_places.new(tokenizer)
  local ids = tokenizer:encode("a")
  local anchor = ids[#ids]
  return setmetatable({
    tokenizer = tokenizer, texts = {}, anchor = anchor, anchor_text = tokenizer:decode({ anchor }),
  }, Places)
end

-- What tokens add to a text.
local function decoded(self, ids)
  local both = self.tokenizer:decode({ self.anchor, unpack(ids) })
  local is_added = both:sub(1, #self.anchor_text) == self.anchor_text
  return is_added and both:sub(#self.anchor_text + 1) or self.tokenizer:decode(ids)
end

local function text_of(self, id)
  self.texts[id] = self.texts[id] or decoded(self, { id })
  return self.texts[id]
end

local function is_at(text, at, part) return text:sub(at, at + #part - 1) == part end

-- The place of a token that begins at or behind a byte: where its text is found, with a blank less, or behind blanks
-- that the tokenizer left out.
local function place_of(text, at, part)
  local bare = part:gsub("^ ", "")
  if is_at(text, at, part) then return at, at + #part - 1 end
  if is_at(text, at, bare) then return at, at + #bare - 1 end
  local behind = text:match("^%s+()", at)
  if behind and is_at(text, behind, bare) then return behind, behind + #bare - 1 end
end

local MAX_BYTES = 4 -- of a character
local NO_CHARACTER = "\239\191\189" -- U+FFFD

-- Tokens from one on that are a character together, in tokenizers that write rare characters byte by byte: what they
-- decode to, and the last of them.
local function character_of(self, ids, i)
  local bytes = {}
  for j = i, math.min(i + MAX_BYTES - 1, #ids) do
    bytes[#bytes + 1] = ids[j]
    local text = decoded(self, bytes)
    if not text:find(NO_CHARACTER, 1, true) then return text, j end
  end
end

local MAX_TOKENS = 16 -- of a part that was rewritten, such as an emoji's letters and joiners
local MAX_PART = 256  -- its bytes

-- A part of the text from a byte on that the tokenizer writes as tokens from one on: its last byte, and the last token.
local function rewritten_of(self, text, at, ids, i)
  local finals, some = {}, {}
  for j = i, math.min(i + MAX_TOKENS - 1, #ids) do
    some[#some + 1] = ids[j]
    local written = decoded(self, some)
    finals[written] = finals[written] or j
  end
  finals[""] = nil
  for last = at, math.min(at + MAX_PART, #text) do
    local following = text:byte(last + 1)
    local ends_character = not following or following < 0x80 or following >= 0xC0
    local final = ends_character and finals[decoded(self, self.tokenizer:encode(text:sub(at, last)))]
    if final then return last, final end
  end
end

---The bytes of each token.
---@param text string
---@param ids integer[] of the whole text
---@param where string for messages
---@return integer[] firsts a token without bytes begins behind its last
---@return integer[] lasts
function Places:of(text, ids, where)
  local firsts, lasts, at, i = {}, {}, 1, 1
  while ids[i] do
    local first, last = place_of(text, at, text_of(self, ids[i]))
    local same = i
    if not first then
      local character, final = character_of(self, ids, i)
      if character then first, last = place_of(text, at, character) end
      same = final
    end
    if not first then
      local part_end, final = rewritten_of(self, text, at, ids, i)
      if part_end then first, last, same = at, part_end, final end
    end
    if not first then
      errors.raise("MS_EUNSUPPORTED", "%s: %s writes byte %d of the text otherwise than it is (%s), so which tokens "
        .. "are those of answers is not known: give a template by name or a table of texts, which are encoded piece by "
        .. "piece", where, self.tokenizer.path or "the tokenizer", at, options.describe(text:sub(at, at + 20)))
    end
    for j = i, same do firsts[j], lasts[j] = first, last end
    at, i = last + 1, same + 1
  end
  return firsts, lasts
end

return token_places
