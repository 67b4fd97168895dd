-- The lint rule against quoted sentences: what it must find, and what it must leave alone.

local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")

-- Runs the rule over a file; returns what it printed, and whether it found nothing.
local function lint(name, text)
  local path = scratch.path() .. name
  scratch.write(path, text)
  local pipe = assert(io.popen(("luajit tests/lint/prose.lua %s; echo status $?"):format(path)))
  local out = pipe:read("*a")
  pipe:close()
  os.remove(path)
  return out:match("^(.*)status %d+\n$"), out:find("status 0\n$") ~= nil
end

local function finds(name, text, line)
  local out, fine = lint(name, text)
  assert.is_false(fine, text)
  has(out, ":" .. line .. ":")
end

local function passes(name, text)
  assert.same({ "", true }, { lint(name, text) })
end

local SENTENCE = ("%s %s %s %s"):format("there", "are", "four", "words")

describe("the lint rule against quoted sentences", function()
  after_each(scratch.clear)

  it("finds them where a spec compares", function()
    finds("_spec.lua", 'has(err, "' .. SENTENCE .. '")', 1)
    finds("_spec.lua", "local x\nassert.truthy(err:find('rank 2: " .. SENTENCE .. "', 1, true), err)", 2)
    finds("_spec.lua", 'assert.equal("' .. SENTENCE .. '", err)', 1)
    finds("_spec.lua", 'assert.equal([[\n' .. SENTENCE .. ']], err)', 1)
    finds("_spec.lua", 'local CASES = {\n  { 1, "there are "\n    .. "four words" } }', 2)
    finds("_spec.lua", '-- a comment\nhas(err, ("' .. SENTENCE .. ' %d"):format(3))', 2)
  end)

  it("finds them where a C test compares", function()
    finds(".c", 'assert_fails(call(), MS_EINVAL, "' .. SENTENCE .. '");', 1)
    finds(".c", 'assert_has(text,\n           "there are "\n           "four words");', 2)
    finds(".c", '/* a comment */\nassert_true(strstr(text, "' .. SENTENCE .. '"));', 2)
  end)

  it("leaves facts, names, lists, columns and programs alone", function()
    passes("_spec.lua", 'has(err, "rank 2 | layers.1 | all_gather | three words here")')
    passes("_spec.lua", 'has(err, "pipe, replicate, shard, tensor, rt")')
    passes("_spec.lua", 'has(out, "mesh  batch  peak  params  optim")')
    passes("_spec.lua", 'run("if rank then error() end for i in pairs(x) do step() end")')
    passes(".c", 'assert_has(text, "rank 2 | /nowhere: | No such file");')
  end)

  it("leaves titles and failures of the test itself alone, and what the test said itself", function()
    passes("_spec.lua", 'it("' .. SENTENCE .. '", function() assert.equal(1, n, "' .. SENTENCE .. '") end)')
    passes("_spec.lua", 'for title, case in pairs({ ["' .. SENTENCE .. '"] = 1 }) do it(title, case) end')
    passes("_spec.lua", 'error("' .. SENTENCE .. '")\nhas(err, "rank 2: ' .. SENTENCE .. '")')
    passes(".c", 'if (!ok) fail_msg("' .. SENTENCE .. ' %d", n);')
  end)

  it("leaves alone what says why", function()
    passes("_spec.lua", 'has(err, "' .. SENTENCE .. '") -- prose: another program')
    passes("_spec.lua", '-- prose: another program\nhas(err, "' .. SENTENCE .. '")')
    passes(".c", '/* prose: another program */\nassert_has(text, "' .. SENTENCE .. '");')
    finds("_spec.lua", 'has(err, "' .. SENTENCE .. '") -- prose:', 1)
  end)
end)
