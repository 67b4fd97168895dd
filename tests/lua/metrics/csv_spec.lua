-- CSV that programs read back as it was: every value of a cell, in a parser of RFC 4180.

local csv = require("moonshard.base.text.csv")

-- The cells of the first line.
local function parse(text)
  local cells, at = {}, 1
  repeat
    local cell, after
    if text:sub(at, at) == '"' then
      cell, after = "", at + 1
      while true do
        local stop = text:find('"', after, true)
        cell = cell .. text:sub(after, stop - 1)
        if text:sub(stop + 1, stop + 1) ~= '"' then
          after = stop + 1
          break
        end
        cell, after = cell .. '"', stop + 2
      end
    else
      after = text:find("[,\n]", at) or #text + 1
      cell = text:sub(at, after - 1)
    end
    cells[#cells + 1] = cell
    at = after + 1
  until text:sub(after, after) ~= ","
  return cells
end

describe("a line of CSV", function()
  it("gives its texts back as they were, also those that a spreadsheet takes for formulas", function()
    local texts = {
      "=1+1", "+x", "-x", "@sum", "a,b", 'a "b"', "a\nb", "\r", " a", "a ", "\ta", "'=1", "", "plain", '"', '""', ",",
    }
    assert.same(texts, parse(csv.line(texts, #texts)))
    assert.equal("=1+1", csv.cell "=1+1")
    assert.equal('"=a,b"', csv.cell "=a,b")
  end)

  it("has numbers that read back as the same, those included that JSON lacks", function()
    local numbers = { 0.1, 1 / 3, 1e300, 5e-324, -7, 2 ^ 53, math.huge, -math.huge }
    for i, text in ipairs(parse(csv.line(numbers, #numbers))) do assert.equal(numbers[i], tonumber(text)) end
    assert.equal("nan", csv.cell(0 / 0))
    assert.same({ "1", "", "true", "" }, parse(csv.line({ 1, nil, true }, 4)))
  end)
end)
