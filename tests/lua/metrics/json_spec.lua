-- JSON as Lua values: what encode writes reads back, and what is not JSON is refused with its place.

local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")

describe("json.decode", function()
  it("reads back what encode writes", function()
    local value = {
      text = 'a "quoted"\n\ttab \\ and \127 é',
      numbers = { 0, -1.5, 1e300, 0.1, 123456789 },
      nested = { { a = { b = true } } },
      no = false,
    }
    assert.same(value, json.decode(json.encode(value)))
  end)

  it("reads every kind of value, with spaces anywhere", function()
    assert.same({ a = { 1, -2.5e3, "x" }, c = {} },
      json.decode(' { "a" : [ 1 , -2.5e3 ,\n"x" ] , "b" : null, "c":{} } '))
    assert.equal("é €😀/", json.decode([["\u00e9 \u20AC\ud83d\ude00\/"]]))
    assert.equal(true, json.decode("true"))
    assert.same({}, json.decode("[]"))
  end)

  it("refuses text that is not JSON, with the position", function()
    for text, place in pairs({
      [""] = 1, ["{"] = 2, ['{"a":1'] = 7, ['{"a" 1}'] = 6, ["{a:1}"] = 2, ["[1 2]"] = 4, ["[1,]"] = 4, ['"a'] = 3,
      ['"\\x"'] = 2, ['"\\ud800"'] = 2, ["01"] = 1, ["1."] = 1, ["nul"] = 1, ["{} x"] = 3, ['"a\nb"'] = 3, ["-"] = 1,
      ['{"a":1,"a":1}'] = 8,
    }) do
      local value, why = json.decode(text)
      assert.is_nil(value)
      assert.truthy(why and why:find("^byte " .. place .. ": "), text .. " -> " .. tostring(why))
    end
  end)

  it("tells null from absence, and an empty list from an empty object, where the reader asks", function()
    local value = json.decode('{"a": null, "b": [], "c": {}, "d": [null, 1]}', true)
    assert.equal(json.null, value.a)
    assert.equal(json.null, value.d[1])
    assert.equal('{"a":null,"b":[],"c":{},"d":[null,1]}', json.encode(value))
    assert.equal("[]", json.encode(json.list {}))
    assert.is_nil(json.decode("null"))
  end)

  it("gives the members of an object in their order, with their texts", function()
    local text = '{ "z" : 1.0 , "a": [ 1, 2 ],\n"m": null, "b": {"c": [] } }'
    local list = {}
    for i, member in ipairs(json.fields(text)) do list[i] = { member.name, member.text } end
    assert.same({ { "z", "1.0" }, { "a", "[ 1, 2 ]" }, { "m", "null" }, { "b", '{"c": [] }' } }, list)
    for _, wrong in ipairs({ "[1]", "1", "", '{"a":1', "{} x" }) do assert.is_nil(json.fields(wrong)) end
  end)

  it("gives the text around the members of an object, so that all together are its text", function()
    for _, text in ipairs({ '{ "z" : 1.0 , "a": [ 1, 2 ],\n"m": null }\n', "{}", " {\n}\r\n",
      '{"a":"\\u00e9","\\u0062":-0.0}', '\n{\r\n\t"a":\r\n\t{"b" : 1e-05},\r\n\t"c":\t[]\r\n}' }) do
      local members = json.fields(text)
      local parts = { members.head }
      for _, member in ipairs(members) do
        parts[#parts + 1] = (member.comma or "") .. member.before .. member.text
      end
      assert.equal(text, table.concat(parts) .. members.tail)
    end
  end)

  it("names the field of a NaN or an infinity, which Python writes", function()
    local function why(text) return select(2, json.decode(text)) end
    has(why('{\n "a": 1,\n "rope_theta": NaN\n}'), "byte 27: | rope_theta | line 3 | NaN | Python | null")
    has(why('{"a": [1, -Infinity]}'), "byte 11: | -Infinity | Python | null")
    for char, escape in pairs({ ["\t"] = "\\t", ["\1"] = "\\u0001", ["\31"] = "\\u001f" }) do
      for _, before in ipairs({ "P", 'P\\n', "" }) do
        local said = why(('{"a": "%s%sx"}'):format(before, char))
        has(said, ("byte %d: | control | %s"):format(8 + #before, escape))
        assert.is_nil(said:find("unterminated", 1, true))
      end
    end
    for _, open in ipairs({ '{"a": "b', '{"a": "b\n}', '{"a": "b\r\n}', '{"a": "\\n' }) do
      has(why(open), "unterminated")
    end
    has(why('{"eps": Infinity}'), "byte 9: | eps | Infinity | Python | null")
  end)

  it("remembers how what it read was written, where that is asked for", function()
    local text = '{"b": null, "a": {"z": 1.0, "y": [1, 2e2, null, 12345678901234567890], "x": 3}, "c": []}'
    local value = json.decode(text, true)
    assert.same({ keys = { "b", "a", "c" } }, json.written(value))
    assert.equal(json.null, value.b)
    assert.same({ keys = { "z", "y", "x" }, numbers = { z = "1.0" } }, json.written(value.a))
    assert.equal(json.null, value.a.y[3])
    assert.same({ numbers = { [2] = "2e2", [4] = "12345678901234567890" } }, json.written(value.a.y))
    assert.is_true(json.is_list(value.c))
    assert.is_nil(json.written(json.decode(text)))
    local strict = json.decode_strictly('{"b": null, "a": 1}')
    assert.is_nil(strict.b)
    assert.same({ keys = { "b", "a" } }, json.written(strict))
  end)
end)
