-- A tokenizer whose tokens are bytes, for models of up to 256 tokens: the one that is used if no other is given.

---@field of_bytes boolean a text has no tokens but its bytes: none of a template's can be missing
local byte_tokens = { of_bytes = true }

---@param text string
---@return integer[]
function byte_tokens:encode(text)
  local ids = {}
  for i = 1, #text do ids[i] = text:byte(i) end
  return ids
end

---@param ids integer[]
---@return string
function byte_tokens:decode(ids)
  local list = {}
  for i, id in ipairs(ids) do list[i] = string.char(id) end
  return table.concat(list)
end

return byte_tokens
