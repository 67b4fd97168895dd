-- Checkpoints: what comes back on the same mesh and on others, who writes what, and what is refused. What is left when
-- saving fails, or is killed, is in checkpoint_crash_spec.lua.

local compare = require("moonshard.check.tolerance")
local ffi = require("ffi")
local json = require("cjson")
local ms = require("moonshard")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local assert_close = require("lua.support.fixture").assert_close
local message = require("lua.support.fixture").message
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local with = require("lua.support.trained").with

local new_folder, read, write = scratch.path, scratch.read, scratch.write
local thread = os.getenv("MOONSHARD_CONFIG") == "thread"

-- Runs tests/lua/recipes/parity.lua; gives what it wrote.
local function train(ranks, settings)
  local out, words = os.tmpname(), {}
  for name, value in pairs(settings) do words[#words + 1] = ("%s=%s"):format(name, tostring(value)) end
  local ended = program.run({ "run", "tests/lua/recipes/parity.lua", "-n", tostring(ranks), "out=" .. out,
    unpack(words) })
  assert(ended.status == 0, ended.err)
  local result = json.decode(read(out))
  os.remove(out)
  return result
end

-- A run of 8 steps that is saved after 5, and what a run that goes on from there ends with.
local SAVED, STEPS = 5, 8

local function assert_goes_on(whole, rest, tolerance)
  assert_close({ unpack(whole.losses, SAVED + 1) }, rest.losses, tolerance, "losses")
  assert_close({ unpack(whole.norms, SAVED + 1) }, rest.norms, tolerance, "norms")
  for name, values in pairs(whole.params) do
    assert_close(values, rest.params[name], tolerance * compare.PARAMETERS, name)
  end
end

local function save_on(ranks, mesh, settings)
  local folder = new_folder()
  local whole = train(ranks, with(settings, { mesh = mesh, steps = STEPS, save = folder, save_at = SAVED }))
  return folder, whole
end

local function go_on(ranks, mesh, settings, folder)
  return train(ranks, with(settings, { mesh = mesh, steps = STEPS, load = folder }))
end

-- One checkpoint of a 2x2 mesh that several tests read.
local shared, shared_whole

local function checkpoint_2x2()
  if not shared then shared, shared_whole = save_on(4, "2x2", {}) end
  return shared, shared_whole
end

local VARIANTS = {
  { "AdamW, rows, dropout #all", { dropout = true } },
  { "ragged, several groups, saved in the background", { layout = "ragged", async = true, dropout = true } },
  { "bf16, frozen parameters, unused parameters", { dtype = "bf16", freeze = "embed", spare = true } },
  { "SGD with momentum, micro-batches whose gradients wait", { optimizer = "sgd", micro = 3, sync = "last" } },
  { "SGD without state #all", { optimizer = "sgd", momentum = 0 } },
}

describe("a checkpoint", function()
  teardown(function()
    scratch.clear()
  end)

  for i, variant in ipairs(VARIANTS) do
    if not thread or i == 2 then
      it("K1 goes on bit for bit on the same mesh: " .. variant[1], function()
        local folder, whole = save_on(4, "2x2", variant[2])
        assert_goes_on(whole, go_on(4, "2x2", variant[2], folder), 0)
      end)
    end
  end

  it("K1 goes on with parity on any other mesh #release", function()
    local folder, whole = checkpoint_2x2()
    local meshes = { { 4, "1x4" }, { 4, "4x1" }, { 1, "1x1" }, { 3, "1x3" } }
    for _, mesh in ipairs(thread and { meshes[4] } or breadth.all and meshes or { meshes[2], meshes[4] }) do
      assert_goes_on(whole, go_on(mesh[1], mesh[2], {}, folder), 1e-5)
    end
    if thread then return end
    folder, whole = save_on(3, "1x3", { layout = "ragged" })
    assert_goes_on(whole, go_on(4, "2x2", { layout = "rows" }, folder), 1e-5)
  end)

  it("K1 brings back data position, schedule, dropout and ms.rand where a run had died", function()
    local folder, outs = new_folder(), { os.tmpname(), os.tmpname(), os.tmpname() }
    local function run(out, ...)
      local ended = program.run({ "run", "tests/lua/recipes/checkpointed.lua", "-n", "4", "out=" .. out, ... })
      assert(ended.status == 0, ended.err)
      return ended.out
    end
    run(outs[1])
    run(outs[2], "stop=7", "checkpoint=" .. folder)
    local said = run(outs[3], "resume=auto", "checkpoint=" .. folder)
    assert.equal(("resumed from %s/step-00000006, after step 6\n"):format(folder), said)
    local whole, rest = read(outs[1]), read(outs[3])
    local last = whole:find("\n7 ", 1, true)
    assert.truthy(rest:sub(1, 2) == "7 " and whole:sub(last + 1) == rest)
    -- It kept the two newest, the last of them from the end of the run, and does not begin anew over them.
    assert.same({ 6, 9 }, { ms.checkpoint.list(folder)[1].step, ms.checkpoint.list(folder)[2].step })
    local ended = program.run({ "run", "tests/lua/recipes/checkpointed.lua", "checkpoint=" .. folder, "mesh=1x1" })
    assert.equal(2, ended.status)
    has(ended.err, "step-00000009 | resume=auto")
    for _, out in ipairs(outs) do os.remove(out) end
  end)

  it("K2 each rank writes what it owns, replicas even shares of it, and every element is there once", function()
    local checkpoint = ms.checkpoint.open((checkpoint_2x2()))
    checkpoint:verify()
    local read_back, bytes, seen = checkpoint.manifest, {}, {}
    assert.equal(4, #read_back.files)
    for writer, file in ipairs(read_back.files) do
      assert.equal(("rank-%05d.safetensors"):format(writer - 1), file.file)
      bytes[writer] = 0
      for _, tensor in ipairs(file.tensors) do
        bytes[writer] = bytes[writer] + 4 * tensor.count
        local key, shard = tensor.kind .. " " .. tensor.parameter, (writer - 1) % 2
        seen[key] = seen[key] or {}
        for i = tensor.first, tensor.first + tensor.count - 1 do
          assert.is_nil(seen[key][i])
          seen[key][i] = shard
        end
      end
    end
    -- Ranks 0 and 2 own the same, and so do 1 and 3.
    assert(math.abs(bytes[1] - bytes[3]) <= 4 and math.abs(bytes[2] - bytes[4]) <= 4, table.concat(bytes, " "))
    for _, param in ipairs(read_back.parameters) do
      local numel, rows = 1, param.shape[1]
      for _, size in ipairs(param.shape) do numel = numel * size end
      local boundary = math.ceil(rows / 2) * numel / rows -- of the first shard
      for _, kind in ipairs({ "param", "exp_avg", "exp_avg_sq" }) do
        local owners = seen[kind .. " " .. param.name]
        for i = 0, numel - 1 do assert.equal(i < boundary and 0 or 1, owners[i]) end
      end
    end
    checkpoint:close()
  end)

  -- What follows between ranks has been seen by now: the rest would only take time under the thread sanitizer.
  local function it_unless_thread(name, call)
    if not thread then it(name, call) end
  end

  it_unless_thread("K2 ranks read the bytes that they own and no others, unless they check them", function()
    local recipe = program.recipe([[
      local ms = require "moonshard"
      local cfg = ms.args { folder = "", verify = true }
      local model = ms.nn.sequential { ms.nn.linear(300, 7000) }
      ms.fully_shard(model, { mesh = { 1, 3 } })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse }
      if cfg.verify then ms.checkpoint.save(train, cfg.folder) end
      local read = ms.checkpoint.load(train, cfg.folder, { verify = cfg.verify }).bytes_read
      local owned = 0
      for name in model:named_parameters() do owned = owned + 4 * train:local_parameter(name):numel() end
      assert(cfg.verify and read >= owned or read == owned, read .. " " .. owned)
    ]])
    local own = new_folder()
    assert.equal(0, program.run({ "run", recipe, "-n", "3", "folder=" .. own }).status)
    local ended = program.run({ "run", recipe, "-n", "3", "folder=" .. own, "verify=false" })
    assert.equal("", ended.err)
    os.remove(recipe)
  end)

  it("K3 a save in the background holds training for the copy alone, and saves what was copied", function()
    local ended = program.run({ "run", "tests/lua/checkpoints/recipes/background_save.lua", "-n", "2",
      "dir=" .. new_folder() })
    assert.equal("", ended.err)
  end)

  it_unless_thread("K4 another model is refused, with all that differs", function()
    local folder = checkpoint_2x2()
    local recipe = program.recipe([[
      local ms = require "moonshard"
      local cfg = ms.args { folder = "", optimizer = "sgd" }
      local Net = ms.module "Net"
      function Net:init()
        self.embed, self.head, self.extra = ms.nn.linear(15, 18), ms.nn.linear(17, 3), ms.nn.linear(2, 2)
      end
      local train = ms.trainer { model = Net(), optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse }
      ms.checkpoint.load(train, cfg.folder)
    ]])
    local ended = program.run({ "run", recipe, "-n", "2", "folder=" .. folder })
    os.remove(recipe)
    assert.equal(2, ended.status)
    has(ended.err, "/step-00000005 | extra.weight, extra.bias | embed.weight [17,15] | [18,15] | embed.bias [17] | "
      .. "[18] | layers.0.fc1.weight, layers.0.fc1.bias,")
    has(ended.err, "8 more | optimizer=adamw | sgd")
    ended = program.run({ "run", "tests/lua/recipes/parity.lua", "optimizer=sgd", "load=" .. folder })
    has(ended.err, "adamw | exp_avg | exp_avg_sq | sgd | momentum")
    ended = program.run({ "run", "tests/lua/recipes/parity.lua", "load=/nonexistent" })
    has(ended.err, "/nonexistent | checkpoint | manifest.json")
  end)

  it_unless_thread("K4 a parameter that trains, but was frozen when it was saved, is refused by name", function()
    local folder = save_on(2, "1x2", { freeze = "embed.weight" })
    local ended = program.run({ "run", "tests/lua/recipes/parity.lua", "-n", "2", "mesh=1x2", "load=" .. folder })
    assert.equal(2, ended.status)
    has(ended.err, "exp_avg | embed.weight | frozen")
  end)

  it("K4 damage is found wherever it is, on all ranks", function()
    local path = checkpoint_2x2() .. "/step-00000005"
    local copy = new_folder()
    local function refused(name, damage)
      os.execute(("rm -rf %s; cp -r %s %s"):format(copy, path, copy))
      local whole = read(copy .. "/" .. name)
      write(copy .. "/" .. name, damage(whole))
      local ok, raised = pcall(function() ms.checkpoint.open(copy):verify() end)
      assert.is_false(ok, name)
      has(tostring(raised), copy .. "/" .. name)
      return tostring(raised)
    end
    local function flip(at)
      return function(text)
        at = at < 0 and #text + at or at
        return text:sub(1, at) .. string.char((text:byte(at + 1) + 1) % 256) .. text:sub(at + 2)
      end
    end
    for _, name in ipairs({ "rank-00000.safetensors", "rank-00003.safetensors", "manifest.json" }) do
      for _, at in ipairs({ 0, 20, 100, -1, -200, -3 }) do refused(name, flip(at)) end
      for _, bytes in ipairs({ 0, 7, 300, 1000 }) do refused(name, function(text) return text:sub(1, bytes) end) end
      refused(name, function(text) return text .. "x" end)
    end
    -- The same by a run: whose rank reads it, says so, and all end.
    refused("rank-00003.safetensors", flip(-1))
    local ended = program.run({ "run", "tests/lua/recipes/parity.lua", "-n", "2", "mesh=1x2", "load=" .. copy })
    assert.equal(3, ended.status)
    has(ended.err, "damaged")
    os.remove(copy .. "/rank-00002.safetensors")
    ended = program.run({ "run", "tests/lua/recipes/parity.lua", "-n", "2", "mesh=1x2", "load=" .. copy })
    has(ended.err, "rank-00002.safetensors: No such file")
  end)

  it("K2 a folder that cannot be is refused before anything is trained #release", function()
    local file = new_folder()
    write(file, "not a folder")
    local recipe = program.recipe([==[
      local ms = require("moonshard")
      local cfg = ms.args { dir = "" }
      local model = ms.nn.linear(4, 2)
      ms.fully_shard(model, { mesh = "1x2" })
      ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 },
        checkpoint = { dir = cfg.dir, every = 1000 } }
    ]==])
    for dir, folder in pairs({ [file] = file, [file .. "/in/it"] = file .. "/in" }) do
      local ended = program.run({ "run", recipe, "-n", "2", "dir=" .. dir })
      assert.equal(2, ended.status, ended.err)
      has(ended.err, ("checkpoint: dir: | folder %s: Not a directory"):format(folder))
    end
    local ended = program.run({ "run", recipe, "-n", "2", "dir=/proc" })
    assert.equal(2, ended.status, ended.err)
    has(ended.err, "checkpoint: dir: /proc/.writable-")
    os.remove(recipe)
  end)

  it("K2 a folder that cannot be read is not empty, which would start a run that should resume #release", function()
    local loop = new_folder()
    os.execute(("ln -s %s %s"):format(loop, loop))
    local model = ms.nn.linear(4, 2)
    ms.fully_shard(model)
    local optimizer = ms.optim.sgd { lr = 1 }
    local function trainer(checkpoint)
      return ms.trainer { model = model, loss = ms.loss.mse, optimizer = optimizer, checkpoint = checkpoint }
    end
    local expected = ("folder %s: Too many levels"):format(loop)
    has(message(ms.checkpoint.latest, loop), expected)
    has(message(trainer, { dir = loop, every = 1, resume = "auto" }), expected)
    has(message(ms.checkpoint.load, trainer(), loop), expected)
    -- Both values of ms.checkpoint.latest.
    has(message(ms.checkpoint.load, trainer(), loop, 4), "ms.checkpoint.load | 4 | latest")
    os.remove(loop)
  end)

  it("K2 a file in the way of a checkpoint is reported, and left as it is #release", function()
    local root, model = new_folder(), ms.nn.linear(4, 2)
    local trainer = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 } }
    os.execute(("mkdir -p '%s/step-00000000'"):format(root))
    write(root .. "/step-00000000/mine", "kept")
    local ok, raised = pcall(ms.checkpoint.save, trainer, root)
    assert.is_false(ok)
    has(tostring(raised), "step-00000000 | checkpoint")
    assert.equal("kept", read(root .. "/step-00000000/mine"))
  end)

  it("K4 another number of heads is refused, although all shapes are equal #release", function()
    local root = new_folder()
    local function make(heads)
      local model = ms.models.gpt2 { vocab = 32, layers = 1, dim = 8, heads = heads, seq = 8 }
      return ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.sgd { lr = 1 } }
    end
    ms.checkpoint.save(make(2), root)
    assert.equal(0, ms.checkpoint.load(make(2), root).step)
    for _, target in ipairs({ make(4), make(4).model }) do
      local ok, raised = pcall(ms.checkpoint.load, target, root)
      assert.is_false(ok)
      has(tostring(raised), "heads=2 | 4")
    end
  end)

  it("K4 a newest one that is damaged, or not of the step in its name, is reported #release", function()
    local folder = new_folder()
    local function run(...)
      return program.run({ "run", "tests/lua/recipes/checkpointed.lua", "-n", "2", "mesh=1x2", "async=false",
        "checkpoint=" .. folder, "save_every=1", ... })
    end
    local ended = run("steps=2")
    assert.equal(0, ended.status, ended.err)
    local newest, older = folder .. "/step-00000002", folder .. "/step-00000001"
    local linked = folder .. "/step-00000009"
    os.execute(("ln -s step-00000001 %s"):format(linked))
    ended = run("resume=auto")
    assert.equal(2, ended.status, ended.err)
    has(ended.err, linked .. ": | step 9 | manifest | step 1 | name | " .. newest)
    os.remove(linked)
    local whole = read(newest .. "/rank-00001.safetensors")
    for what, text in pairs({ ["damaged"] = whole:sub(1, -2) .. string.char((whole:byte(-1) + 1) % 256),
        ["must"] = whole:sub(1, 5), ["end"] = whole .. "x" }) do
      write(newest .. "/rank-00001.safetensors", text)
      ended = run("resume=auto", "steps=3")
      assert.truthy(ended.status ~= 0)
      has(ended.err, "checkpoint | " .. older)
    end
    assert.equal(0, run("resume=" .. older, "steps=1").status)
  end)

  it("K4 a manifest of a later version, or of something else, is refused #release", function()
    local folder = new_folder()
    os.execute("mkdir " .. folder)
    write(folder .. "/manifest.json", "{}")
    local ok, raised = pcall(ms.checkpoint.open, folder)
    assert.is_false(ok)
    has(tostring(raised), "checksum")
  end)

  it_unless_thread("K1 is shown by inspect and exported in full, in one file", function()
    local folder, whole = checkpoint_2x2()
    local shown = program.run({ "inspect", folder })
    assert.equal("", shown.err)
    local head = folder .. "/step-00000005: step 5, mesh 2x2 (replicate, shard), 16 parameters, "
    has(shown.out, head)
    has(shown.out, "4 files | checksum")
    local parsed = json.decode(program.run({ "inspect", folder, "--json", "--no-checksums" }).out)
    assert.same({ 5, 4, "adamw" }, { parsed.step, parsed.ranks, parsed.optimizer.kind })
    assert.is_false(parsed.checksums_compared)
    local last, out = save_on(1, "1x1", {}), new_folder()
    local ended = program.run({ "export", last, out })
    assert.equal("", ended.err)
    local file, checkpoint = ms.safetensors.open(out), ms.checkpoint.open(last)
    assert.equal(#checkpoint.parameters, #file.tensors)
    for _, param in ipairs(checkpoint.parameters) do
      assert.same(param.shape, file:tensor(param.name).shape)
      local saved = checkpoint:file("rank-00000.safetensors")
      assert.equal(saved:checksum("model." .. param.name), file:checksum(param.name))
    end
    -- Of four ranks' pieces: the same within what meshes differ by.
    assert.equal(0, program.run({ "export", folder, out .. "/of-four" }).status)
    local other, values = ms.safetensors.open(out .. "/of-four"), {}
    for name, expected in pairs(whole.params) do
      local both = { ffi.new("float[?]", #expected), ffi.new("float[?]", #expected) }
      file:read(name, 0, 4 * #expected, both[1])
      other:read(name, 0, 4 * #expected, both[2])
      for side = 1, 2 do
        values[side] = {}
        for i = 1, #expected do values[side][i] = both[side][i - 1] end
      end
      assert_close(values[1], values[2], 1e-4, name)
    end
    file:close()
    other:close()
    ended = program.run({ "export", folder, out })
    assert.equal(2, ended.status)
    has(ended.err, out .. "/model.safetensors | already")
    ended = program.run({ "export", folder })
    assert.equal(2, ended.status)
    has(ended.err, "moonshard export CHECKPOINT OUT")
  end)

  it_unless_thread("K3 the memory of a save in the background is told before the first step", function()
    local ended = program.run({ "plan", "tests/lua/recipes/checkpointed.lua", "-n", "4", "checkpoint=x" })
    assert.truthy(ended.out:find("arenas[^\n]* %d[%d.]* KiB [^\n]*background[^\n]*\n$"), ended.out)
    ended = program.run({ "plan", "tests/lua/recipes/checkpointed.lua", "-n", "4", "checkpoint=x", "--json" })
    assert(json.decode(ended.out).snapshot_bytes > 1000)
    ended = program.run({ "plan", "tests/lua/recipes/checkpointed.lua", "-n", "4", "--json" })
    assert.is_nil(json.decode(ended.out).snapshot_bytes)
  end)

  it("S14 state dicts: sharded without communication, full on the first rank, loaded under other meshes", function()
    local ended = program.run({ "run", "tests/lua/checkpoints/recipes/state_dict.lua", "-n", "4" })
    assert.equal("", ended.err)
    assert.equal(0, ended.status)
  end)
end)
