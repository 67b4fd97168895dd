-- Parts of `make bench`: the C programs of tests/bench/programs, plans and prices, and two hosts. Each prints
-- finished figures.

local report = require("report")

local build = report.build
local compare, exists, json_lines, target = report.compare, report.exists, report.json_lines, report.target
local mpi_program = build .. "/peers/mpi_collectives"

local programs = {}

local function collective_name(line)
  return ("%s/%d ranks/%d KiB"):format(line.name, line.ranks, line.bytes / 1024)
end

function programs.collectives()
  local peer = {}
  for _, ranks in ipairs({ 2, 4 }) do
    local command = ("mpirun --allow-run-as-root --oversubscribe -n %d %s"):format(ranks, mpi_program)
    local lines = exists(mpi_program) and json_lines(command) or {}
    for _, line in ipairs(lines) do peer[collective_name(line)] = line.us end
  end
  if not next(peer) then print("Open MPI's side is missing: make bench-peers") end
  for _, line in ipairs((json_lines(build .. "/release/bench/bench_collectives"))) do
    compare(collective_name(line), "us", line.us, peer[collective_name(line)], "lower")
  end
end

---What the flight recorder takes for an entry, in ns, by what is recorded; filled in by programs.all.
---@type table<string, number>
programs.recorder_ns = {}

---The other programs compare with a peer of their own.
function programs.all()
  for name in io.popen("ls tests/bench/programs/bench_*.c"):read("*a"):gmatch("(bench_[%w_]+)%.c") do
    if name ~= "bench_collectives" then
      for _, line in ipairs((json_lines(("OMP_NUM_THREADS=1 %s/release/bench/%s"):format(build, name)))) do
        programs.recorder_ns[line.name:match("^flight_recorder/(.*)") or ""] = line.ns
        if line.ns then compare(line.name, "ns", line.ns, nil, "lower")
        elseif line.target then target(line.name, line.unit, line.ours, line.target)
        else compare(line.name, line.unit, line.ours, line.peer, "higher") end
      end
    end
  end
end

function programs.plans()
  local paths = ("LUA_PATH='lua/?.lua;lua/?/init.lua;%s/gen/?.lua;;' MOONSHARD_LIB=%s/release/libmoonshard.so"):format(
    build, build)
  for _, command in ipairs({ "luajit tests/bench/plans.lua", "luajit tests/bench/price_list.lua " .. build }) do
    for _, line in ipairs((json_lines("OMP_NUM_THREADS=1 " .. paths .. " " .. command))) do
      target(line.name, line.unit, line.ours, line.target)
    end
  end
end

---Two hosts are network namespaces, which need root; the command says so where they cannot be.
function programs.hosts()
  for _, line in ipairs((json_lines(("recipes/two_hosts.sh luajit tests/bench/hosts.lua %s"):format(build)))) do
    if line.target then
      if line.ours then target(line.name, line.unit, line.ours, line.target) end
    else
      compare(line.name, line.unit, line.ours, line.peer, "lower")
      if line.ours then target(line.name .. ", of the wire", "x", line.ours / line.wire, 1.1) end
    end
  end
end

return programs
