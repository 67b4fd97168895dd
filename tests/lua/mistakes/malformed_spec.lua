-- Files with the right outside and a wrong inside: manifests of which a field is anything else, traces with details
-- missing, rules that fail to run, JSON without an end, lines without one. Each is refused by name, soon, and none
-- gives an error of this layer's own code.

local chrome_trace = require("moonshard.cli.trace.trace_file")
local errors = require("moonshard.base.error")
local ffi = require("ffi")
local json = require("moonshard.base.text.json")
local manifest = require("moonshard.checkpoint.manifest")
local ms = require("moonshard")
local schema = require("moonshard.checkpoint.schema")
local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")
local text_lines = require("moonshard.base.text.text_lines")
local trace = require("moonshard.cli.trace")

ffi.cdef "unsigned alarm(unsigned seconds);"

local SOON = 5 -- seconds of processor time; what is quadratic takes minutes

local function seconds(call, ...)
  local began = os.clock()
  call(...)
  return os.clock() - began
end

-- What every node of a value is replaced by, one at a time.
local WRONG = { false, -1, 0.5, "", "../outside", 1e300, {}, { {} }, { a = 1 } }

-- Calls visit(changed, path) for a copy of `value` in which one node is another.
local function each_mutant(value, visit)
  local text = json.encode(value)
  local function walk(node, path)
    for key, child in pairs(node) do
      local where = { unpack(path) }
      where[#where + 1] = key
      for i = 1, #WRONG + 1 do
        local copy = json.decode(text)
        local at = copy
        for _, step in ipairs(path) do at = at[step] end
        at[key] = WRONG[i]
        visit(copy, table.concat(where, "."))
      end
      if type(child) == "table" then walk(child, where) end
    end
  end
  walk(json.decode(text), {})
end

local function saved()
  local folder = scratch.path()
  os.execute("mkdir " .. folder)
  local train = ms.trainer {
    model = ms.nn.linear(4, 2), optimizer = ms.optim.adamw { lr = 1 }, loss = ms.loss.mse, ema = 0.5,
  }
  return ms.checkpoint.save(train, folder)
end

describe("a malformed file", function()
  teardown(scratch.clear)

  it("K4 a manifest with any field changed is read, or refused by the field's name", function()
    local path = saved()
    local read, refused = manifest.read(path), 0
    each_mutant(read, function(mutant, where)
      local ok, raised = pcall(schema.check, mutant, path)
      if ok then return end
      assert.truthy(errors.is(raised), where .. ": " .. tostring(raised))
      has(raised.message, path .. "/manifest.json: ")
      refused = refused + 1
    end)
    assert.truthy(refused > 200, refused)
  end)

  it("K4 a manifest names each of its own files and tensors once", function()
    local path = saved()
    local function refuses(text, change)
      local read = manifest.read(path)
      change(read)
      local ok, raised = pcall(schema.check, read, path)
      assert.is_false(ok)
      has(raised.message, text)
    end
    for _, name in ipairs({ "../x.safetensors", "/etc/passwd", "a/b", "..", "", "a\0b" }) do
      refuses("files[1].file | folder", function(read)
        read.files[1].file = name
      end)
    end
    refuses("files[2].file is rank-00000.safetensors, as files[1].file is", function(read)
      read.files[2] = read.files[1]
    end)
    refuses("files[1].tensors[2].name is", function(read) read.files[1].tensors[2] = read.files[1].tensors[1] end)
    refuses("parameters[2].name is", function(read) read.parameters[2].name = read.parameters[1].name end)
    refuses("files[1].tensors[1].stride | whole number", function(read) read.files[1].tensors[1].run = 4 end)
    refuses("files[1].tensors[1].origin | at most 4 | 5", function(read)
      local tensor = read.files[1].tensors[1]
      tensor.run, tensor.stride, tensor.origin = 4, 8, 5
    end)
    refuses("parameters[1].shape | [8589934592,8589934592]", function(read)
      read.parameters[1].shape = { 2 ^ 33, 2 ^ 33 }
    end)
  end)

  it("a trace with any field changed is summed up, or refused by the event's number", function()
    local function slice(cat, name, ts, dur, args)
      return { ph = "X", pid = 100, tid = 100, ts = ts, dur = dur, name = name, cat = cat, args = args }
    end
    local events = {
      { ph = "M", pid = 100, tid = 100, ts = 0, name = "process_name", args = { name = "rank 0" } },
      { ph = "M", pid = 100, tid = 100, ts = 0, name = "thread_name", args = { name = "compute" } },
      slice("step", "step 1", 1, 100, { step = 1 }), slice("phase", "first", 2, 90, {}),
      slice("kernel", "matmul", 3, 10, { flops = 5, bytes = 6, module = "fc" }),
      slice("collective,all_gather", "layers.0", 20, 10, { waiting_us = 1, bytes = 9, unit = "layers.0" }),
    }
    assert.is_nil(chrome_trace.check(events))
    each_mutant(events, function(mutant, where)
      local ok, raised = pcall(function()
        local wrong = chrome_trace.check(mutant)
        if not wrong then chrome_trace.summarize(mutant) end
      end)
      assert.truthy(ok, where .. ": " .. tostring(raised))
    end)
  end)

  it("a pipe in the place of a trace is refused at once", function()
    local path = scratch.path()
    assert(os.execute("mkfifo " .. path) == 0)
    ffi.C.alarm(60) -- a reader that waits ends these specs
    local ok, raised = pcall(trace.main, { path })
    ffi.C.alarm(0)
    assert.is_false(ok)
    has(tostring(raised), "regular file")
  end)

  it("R2 rules that fail to run, and compiled ones, are errors of their file", function()
    local path = scratch.path()
    local function fails(source, text)
      scratch.write(path, source)
      local ok, raised = pcall(ms.rules.load, path)
      assert.is_false(ok)
      assert.truthy(errors.is(raised))
      has(raised.message, text)
    end
    fails("local t = nil\nreturn t.x", "ms.rules.load: " .. path .. ":2: attempt to index")
    fails("error('no rules today', 0)", "ms.rules.load: no rules today")
    fails(string.dump(function() return {} end), "ms.rules.load: ")
  end)

  it("JSON that nests without an end is refused, and a table that contains itself is not written", function()
    local value, why = json.decode(("["):rep(1e6))
    assert.is_nil(value)
    has(why, "byte 201: | nest | 200")
    assert.truthy(json.decode(("["):rep(200) .. ("]"):rep(200)))
    assert.truthy(json.decode("[" .. ("[[]],"):rep(300) .. "[]]"))
    local round = {}
    round.round = round
    local ok, raised = pcall(json.encode, round)
    assert.is_false(ok)
    has(raised, "JSON: | nest | 200")
  end)

  it("long lines without an end, and long blanks, take time by their length", function()
    local long, blank = ("x"):rep(3e6), (" "):rep(3e6)
    assert.truthy(seconds(function()
      for line in text_lines.whole("a\n" .. long) do assert.equal("a", line) end
      assert.equal(2, #text_lines.all("a\n" .. long))
      assert.equal("x" .. blank .. "x", text_lines.trim(blank .. "x" .. blank .. "x" .. blank))
    end) < SOON)
    assert.same({ "a", "" }, text_lines.all("a\n"))
    assert.same({ "" }, text_lines.all(""))
    assert.equal("", text_lines.trim(" \t\n"))
  end)

  it("a model of absurd depth is refused before it is built", function()
    for _, make in ipairs({ ms.models.gpt2, ms.models.llama }) do
      local ok, raised = pcall(make, { vocab = 8, layers = 1e9, dim = 4, heads = 2, seq = 4, ffn = 8 })
      assert.is_false(ok)
      has(raised.message, "layers | 1000000000 | 10000")
    end
  end)
end)
