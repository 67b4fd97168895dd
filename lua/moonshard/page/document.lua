-- A page as one document without references: the style sheets and the script that sorts its charts and its table.

local escape = require("moonshard.page.bars").escape
local script = require("moonshard.page.script")
local style = require("moonshard.page.style")

local document = {}

---@param name string
---@param value string
---@param about string small text below the value
---@param first boolean? it is what the page is about
---@return string
function document.tile(name, value, about, first)
  return ("<div%s><dt>%s</dt><dd>%s<small>%s</small></dd></div>"):format(first and ' class="first"' or "", escape(name),
    escape(value), escape(about))
end

---A whole page, with the style sheets, and with the script if it has a table for it.
---@param title string
---@param body string HTML that follows the title
---@return string
function document.of(title, body)
  return table.concat({
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<meta name="color-scheme" content="light dark">',
    [[<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; ]]
      .. [[script-src 'unsafe-inline'">]],
    "<title>" .. escape(title) .. "</title>", "<style>" .. style.drawing .. "</style><style>" .. style.page
      .. "</style></head><body><main>",
    "<h1>" .. escape(title) .. "</h1>", body,
    "</main>" .. (body:find("<table", 1, true) and "<script>" .. script .. "</script>" or "") .. "</body></html>\n",
  }, "\n")
end

---@param warnings string[]
---@return string
function document.warnings(warnings)
  local parts = {}
  for i, warning in ipairs(warnings) do parts[i] = '<p class="warning">' .. escape(warning) .. "</p>" end
  return table.concat(parts, "\n")
end

return document
