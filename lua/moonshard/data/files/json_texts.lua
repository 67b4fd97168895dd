-- Texts in files of JSON objects, one a line or of one list: { "text": "..." }. Each object is a document. The texts of
-- a file follow one another in a copy that is read like any file of text, with something after each that ends it.

local cached_copy = require("moonshard.data.files.cached_copy")
local decompressed = require("moonshard.data.files.decompressed")
local errors = require("moonshard.base.error")
local file_kind = require("moonshard.data.files.file_kind")
local files = require("moonshard.data.files.files")
local forms = require("moonshard.data.conversations.forms")
local json_lines = require("moonshard.data.files.json_lines")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local world = require("moonshard.distributed.world")

local json_texts = {}

local FIELD = "text" -- where texts are by default
local PIECE = 2 ^ 20 -- bytes that are written at a time

---@class moonshard.JsonTextOptions
---@field field string? the field that has the texts; nil: "text", of files that are named .jsonl, .ndjson or .json
---@field ends string what follows each text
---@field flag string how a user gives the field, for messages: "field =" or "--field"

---Whether a file's texts are read from JSON: a file under another name is, if the field is given.
---@param path string
---@param field string?
---@return boolean
function json_texts.reads(path, field)
  if not files.bytes(path) then return false end -- who reads it says why not
  local named = file_kind.is_named_json_lines(path) or file_kind.is_named_json(path)
  return (field ~= nil or named) and file_kind.json(path, decompressed.beginning(path)) ~= nil
end

local function refuse_missing(row, where, o)
  local names = {}
  for name, value in pairs(row) do
    if type(value) == "string" then names[name] = true end
  end
  errors.invalid("%s: the line has no field %s: give the one that has the text: %s NAME; of its fields that are texts "
    .. "%s", where, o.field or FIELD, o.flag, nearest.advice(o.field or FIELD, names))
end

local function text_of(row, where, o)
  local claimed = not o.field and forms.claims(row)
  if claimed then
    errors.invalid("%s: it is %s, which ms.data.chat or ms.data.preferences reads; to train on the texts of one field "
      .. "alone: %s NAME", where, claimed, o.flag)
  end
  local text = row[o.field or FIELD]
  if text == nil then refuse_missing(row, where, o) end
  if type(text) ~= "string" then
    errors.invalid("%s: %s must be a text, not %s", where, o.field or FIELD, options.describe(text))
  end
  return text
end

---The path of a copy that has the texts of a file.
---@param path string
---@param o moonshard.JsonTextOptions
---@return string
function json_texts.path(path, o)
  local name = (files.real_path(path) or path):match("[^/]+$"):gsub("%.zst$", ""):gsub("%.[^.]*$", "")
  return cached_copy.of(path, name .. ".txt", {
    what = "texts of JSON", key = ("texts of %s ended by %q"):format(o.field or "", o.ends),
    write = function(source, put)
      local parts, held = {}, 0
      json_lines.each(source, "texts", function(row, where)
        world.check_interrupt()
        local text = text_of(row, where, o)
        parts[#parts + 1], parts[#parts + 2], held = text, o.ends, held + #text
        if held > PIECE then
          put(table.concat(parts))
          parts, held = {}, 0
        end
      end)
      put(table.concat(parts))
    end,
  })
end

---How text_files.find reads the JSON lines that a call's options raw, field and separator describe. A field that no
---file has is a slip: check_used, afterwards, raises MS_EINVAL for it.
---@param who string for messages: "ms.data.text"
---@param o { raw: boolean?, field: string?, separator: string? }
---@return { reads: (fun(path: string): boolean), path: (fun(path: string): string), check_used: fun() }
function json_texts.of_options(who, o)
  local named = o.field and "field" or o.separator and "separator"
  if o.raw and named then errors.invalid("%s: raw takes all bytes of a file, so there is no %s", who, named) end
  local used = false
  return {
    reads = function(path) return json_texts.reads(path, o.field) end,
    path = function(path)
      used = true
      return json_texts.path(path, { field = o.field, ends = o.separator or "\n", flag = "field =" })
    end,
    check_used = function()
      if used or not named then return end
      errors.invalid("%s: %s is of JSON lines, and no file has them", who, named)
    end,
  }
end

return json_texts
