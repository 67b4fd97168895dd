-- Training over two hosts of two ranks, and PyTorch's FSDP2 over gloo on the same two network namespaces:
--
--   recipes/two_hosts.sh luajit tests/bench/hosts.lua BUILD
--
-- A GPT of 17 million parameters as FSDP, HSDP, HSDP whose replicas share the optimizer's work
-- (shard_optimizer_over_replicate), and HSDP whose replicas sum gradients in 8 bits, in f32 and bf16, at several speeds
-- of the link. Prints one JSON line a figure: {"name", "unit", "ours", "peer"}, medians of the steps after the warm-up,
-- and for the speeds the time that the bytes of a step need on the link alone ("wire"), by the plan. Then, with so few
-- tokens that the link is the limit, the time of HSDP's steps whose replicas sum in 8 bits over that in f32, in turns:
-- {"name", "unit", "ours", "target"}.

package.path = "lua/?.lua;" .. package.path
local json = require("moonshard.base.text.json")

local build, python = arg[1] or "build", nil
local SPEEDS = { { "1gbit", 1e9 / 8 }, { "200mbit", 2e8 / 8 } }
local HOSTS = { "ms-host-a", "ms-host-b" }
local SIZES = { layers = 5, dim = 512, heads = 8, vocab = 1024, seq = 128, batch = 4, steps = 7, warmup = 2 }
local FEW = { seq = 8, batch = 1 } -- tokens of a rank
local FEW_TURNS, FEW_TARGET = 3, 0.4 -- runs of each; the time of a step, over that in f32
local FRAME = 1514 / 1448 -- bytes on the wire for one of payload

local function run(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read("*a")
  pipe:close()
  return json.decode(text:match("{\"name\".-}\n") or ""), text
end

local function options(format, others)
  local list = {}
  for name, value in pairs(SIZES) do list[#list + 1] = format:format(name, others and others[name] or value) end
  table.sort(list)
  return table.concat(list, " ")
end

-- Name, replicas x shards, shard_optimizer_over_replicate, the type in which replicas sum gradients.
local LAYOUTS = {
  { "HSDP", "2x2", false, "" }, { "HSDP, optimizer sharded", "2x2", true, "" },
  { "HSDP, replicas in i8", "2x2", false, "i8" }, { "FSDP", "1x4", false, "" },
}

-- What tells train.lua about a layout; others: sizes in place of SIZES.
local function settings(layout, dtype, others)
  local _, mesh, sharded, replicate = unpack(layout)
  return ("mesh=%s dtype=%s shard_optimizer=%s replicate=%s tokens=%s %s"):format(mesh, dtype, sharded, replicate,
    build .. "/bench/hosts.tokens", options("%s=%s", others))
end

local function ours(layout, dtype, others)
  return run(("OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/train.lua --hosts %s:2,%s:2 "
    .. "--agent 'ip netns exec' %s"):format(build, HOSTS[1], HOSTS[2], settings(layout, dtype, others)))
end

-- Each rank is started in its host's namespace; they meet at a file, which both see.
local function peer(mesh, dtype)
  if not python then return nil end
  local replicate, shard = mesh:match("(%d)x(%d)")
  local store, commands = os.tmpname(), {}
  os.remove(store)
  for rank = 0, 3 do
    commands[#commands + 1] = ("{ GLOO_SOCKET_IFNAME=wire ip netns exec %s %s tests/bench/peers/peer_fsdp2.py "
      .. "--rank %d --store %s --replicate %s --shard %s --dtype %s %s; } &"):format(HOSTS[rank < 2 and 1 or 2], python,
      rank, store, replicate, shard, dtype, options("--%s %s"))
  end
  local found = run("{ " .. table.concat(commands, " ") .. " wait; }")
  os.remove(store)
  return found
end

-- Bytes that a host sends in a step, by the plan.
local function wire_bytes(layout, dtype)
  local pipe = assert(io.popen(("%s/release/moonshard plan tests/bench/train.lua -n 4 --ranks-per-node 2 --json "
    .. "%s"):format(build, settings(layout, dtype))))
  local planned = json.decode(pipe:read("*a"))
  pipe:close()
  local bytes = 0
  for _, moved in pairs(planned and planned.traffic or {}) do bytes = bytes + moved.node.sent_bytes end
  return bytes
end

local function write_tokens()
  os.execute("mkdir -p " .. build .. "/bench")
  local file = assert(io.open(build .. "/bench/hosts.tokens", "wb"))
  for i = 1, 4 * SIZES.batch * (SIZES.seq + 1) * 2 do file:write(string.char(i * 7919 % 251, i % 4, 0, 0)) end
  file:close()
end

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end

-- With few tokens: nil and what a run printed if one of the runs has no figure.
local function i8_over_f32()
  local ratios = {}
  for _ = 1, FEW_TURNS do
    local whole, whole_text = ours(LAYOUTS[1], "f32", FEW)
    local few, few_text = ours(LAYOUTS[3], "f32", FEW)
    if not (whole and few) then return nil, whole and few_text or whole_text end
    ratios[#ratios + 1] = few.step_ms / whole.step_ms
  end
  return median(ratios)
end

write_tokens()
if exists(build .. "/peers/venv/bin/python") then python = build .. "/peers/venv/bin/python" end
for _, speed in ipairs(SPEEDS) do
  os.execute("recipes/two_hosts.sh --shape " .. speed[1])
  for _, dtype in ipairs({ "f32", "bf16" }) do
    local theirs = {}
    for _, layout in ipairs(LAYOUTS) do
      local name, mesh = unpack(layout)
      local mine, text = ours(layout, dtype)
      theirs[mesh] = theirs[mesh] or peer(mesh, dtype) -- which has no such option
      if not mine then io.stderr:write("bench: no figure:\n", text) end
      io.write(json.encode({
        name = ("two hosts/%s/%s/%s"):format(name, dtype, speed[1]), unit = "ms",
        ours = mine and mine.step_ms, peer = theirs[mesh] and theirs[mesh].step_ms,
        wire = 1e3 * wire_bytes(layout, dtype) * FRAME / speed[2],
      }), "\n")
      io.flush()
    end
  end
end

os.execute("recipes/two_hosts.sh --shape " .. SPEEDS[1][1])
local ratio, text = i8_over_f32()
if not ratio then io.stderr:write("bench: no figure:\n", text) end
io.write(json.encode({
  name = "two hosts/replicas in i8 over f32, few tokens/" .. SPEEDS[1][1],
  unit = "x", ours = ratio, target = FEW_TARGET,
}), "\n")
