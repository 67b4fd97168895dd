-- The executable as a user meets it: what it prints, what it says about bad input, and its exit statuses.

local has = require("lua.support.message").has
local launched = require("lua.support.launched")
local line_has = require("lua.support.message").line_has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local refused, with_recipe = program.refused, launched.with_recipe

local TOY = "recipes/toy_hsdp.lua"

describe("moonshard", function()
  it("prints its version and its commands", function()
    local version = program.run({ "--version" })
    assert.equal(0, version.status)
    assert.truthy(version.out:find("^moonshard %d+%.%d+%.%d+\n$"))
    for _, arguments in ipairs({ { "help" }, { "--help" } }) do
      local help = program.run(arguments)
      assert.equal(0, help.status)
      for word in ("run RECIPE.lua|plan RECIPE.lua|doctor|--metrics"):gmatch("[^|]+") do
        has(help.out, word)
      end
    end
  end)

  it("prints the options of every command", function()
    local commands = 0
    for command in program.run({ "help" }).out:gmatch("\n  moonshard (%l+)") do
      if command ~= "help" then
        local help = program.run({ command, "--help" })
        assert.equal(0, help.status)
        assert.equal("  moonshard " .. command .. " ", help.out:sub(1, #command + 13))
        assert.equal(help.out, program.run({ "help", command }).out)
        local valid = program.run({ command, "--" .. ("z-"):rep(30) }).err:match("valid are ([^;\n]*)")
        for option in valid:gmatch("[^%s,]+") do
          assert(help.out:find(option, 1, true), command .. " --help does not tell of " .. option)
        end
        local settings = help.out:find("key=value ...]", 1, true) ~= nil
        assert.equal(settings, help.out:find("\nkey=value overrides", 1, true) ~= nil, command)
        has(help.out, "\nExit status | 0 | 2 | 130")
        commands = commands + 1
      end
    end
    assert.equal(16, commands)
  end)

  it("refuses commands that it does not have", function()
    refused(2, {}, "command", "moonshard help")
    refused(2, { "rn", TOY }, "command rn", "run?")
    refused(2, { "help", "rn" }, "command rn", "run?")
    refused(2, { TOY }, "moonshard run " .. TOY)
  end)

  it("refuses options and arguments that make no sense", function()
    refused(2, { "run" }, "recipe")
    refused(2, { "train", TOY }, "command train", "run?")
    for option, here in pairs({
      ["--nproc-per-node"] = "-n RANKS?", ["-np"] = "-n RANKS?", ["--num_gpus"] = "-n RANKS?",
      ["--nnodes"] = "--nodes N?", ["--node_rank"] = "--node-rank R?", ["--hostfile"] = "--hosts @FILE?",
      ["-H"] = "--hosts a:4,b:4?", ["--rdzv-endpoint"] = "--rendezvous tcp://HOST:PORT?",
      ["--master_addr"] = "--rendezvous tcp://HOST:PORT?",
    }) do
      refused(2, { "run", TOY, option, "4" }, option .. " | " .. here)
    end
    assert.falsy(program.run({ "run", TOY, "--nnodes", "2" }).err:find("setting", 1, true))
    refused(2, { "run", TOY, "--metric", "x" }, "--metric", "--metrics?")
    refused(2, { "run", TOY, "-n" }, "-n | value")
    refused(2, { "run", TOY, "-n", "0" }, "-n 0", "1")
    refused(2, { "run", TOY, "-n", "two" }, "-n two", "number")
    refused(2, { "run", TOY, "-n", "2147483648" }, "-n 2147483648", "2147483647")
    refused(2, { "run", TOY, "-n", "1000" }, "1 to 64 ranks")
    refused(2, { "run", TOY, "--timeout", "-1" }, "--timeout -1", "seconds")
    refused(2, { "run", TOY, "--log-ranks", "some" }, "--log-ranks some", "all")
    refused(2, { "run", TOY, "-n", "2", "--pin", "some" }, "--pin some | auto | none | 0-3,8")
    refused(2, { "run", TOY, "-n", "2", "--pin", "1023" }, "--pin 1023 | core 1023")
    refused(2, { "run", TOY, "-n", "2", "--log-dir", "/dev/null/x" }, "--log-dir | /dev/null is not a folder")
    refused(2, { "run", TOY, "--mesh", "1x2" }, "--mesh | mesh=value | moonshard run --help")
    refused(2, { "sweep" }, "moonshard sweep SWEEP.lua")
    refused(2, { "generate" }, "RECIPE.lua --checkpoint DIR | Hugging Face FOLDER")
    refused(2, { "run", TOY, "steps", "20" }, "argument steps | recipe " .. TOY .. " | key=value")
    refused(2, { "plan", TOY, "-n", "4", "--rank", "4" }, "--rank 4", "0 to 3")
    refused(2, { "doctor", "x=1" }, "settings")
    refused(2, { "doctor", "--json=1" }, "--json | value")
  end)

  it("asks about a mistyped option in a sentence of its own", function()
    local ended = program.run({ "price", "recipes/llama.lua", "--clutser", "h100x8" })
    has(ended.err, "--clutser | --cluster | clutser=value")
    assert.is_nil(ended.err:find("?;", 1, true))
  end)

  it("refuses recipes that are not there, do not parse or do not run", function()
    refused(2, { "run", "nowhere.lua" }, "nowhere.lua", "No such file")
    refused(2, { "run", "recipes" }, "recipes", "Is a directory")
    with_recipe("local x = = 1", function(path)
      refused(2, { "run", path, "-n", "2" }, path .. ":1:", "unexpected symbol")
    end)
    with_recipe("local ms = require 'moonshard'\nlocal x = nil\nprint(x.y)", function(path)
      refused(2, { "run", path, "-n", "2" }, path .. ":3:", "attempt to index")
      refused(2, { "plan", path, "-n", "2" }, path .. ":3:", "attempt to index")
    end)
    with_recipe("local ms = require 'moonshard'\nms.lgo(1, {})", function(path)
      refused(2, { "run", path }, path .. ":2:", "ms.lgo", "log?")
    end)
    with_recipe("local x = 1", function(path)
      refused(2, { "plan", path, "-n", "2" }, "training step")
      refused(2, { "run", path, "steps=3" }, "settings")
    end)
    with_recipe("local ms = require 'moonshard'\nms.trainer { model = ms.nn.linear(2, 2), loss = ms.loss.mse, "
      .. "optimizer = ms.optim.sgd { lr = 1 } }\nprint('trained')", function(path)
      refused(2, { "run", path, "steps=3" }, path .. ":2: | steps=3 | ms.args")
    end)
    with_recipe("require('moonshard').sweep { recipe = 'toy_hsdp.lua', over = { mesh = { '1x1' } } }", function(path)
      refused(2, { "sweep", path, "steps=3" }, path .. ":1: | steps=3 | ms.args")
    end)
  end)

  it("refuses settings, meshes and files that do not fit, with the recipe's line", function()
    local line = refused(2, { "run", TOY, "-n", "4", "stpes=3" }, "stpes", "steps?")
    assert.truthy(line:find("^recipes/toy_hsdp.lua:%d+: "))
    refused(2, { "run", TOY, "-n", "4", "steps=many" }, "steps=many", "number")
    refused(2, { "run", TOY, "-n", "3" }, "mesh 2x2",
      "3 | 4 ranks | one host: -n 4")
    refused(2, { "plan", TOY, "-n", "3" }, "mesh 2x2", "4", "3")
    refused(2, { "run", TOY, "-n", "2", "mesh=-1,-1" }, "-1")
    refused(2, { "run", "recipes/quickstart.lua", "-n", "4", "files=/proc/nowhere" }, "/proc/nowhere: No such file")
    refused(2, { "run", "recipes/quickstart.lua", "-n", "4", "files=/dev/null", "seq=256" }, "/dev/null",
      "regular file")
    refused(2, { "run", "recipes/quickstart.lua", "-n", "4", "files=recipes/toy_hsdp.lua", "seq=4096" },
      "81,921 bytes")
    refused(2, { "run", TOY, "-n", "4", "--metrics", "/proc/nowhere/m.jsonl" }, "--metrics | no folder /proc/nowhere")
    refused(2, { "run", "recipes/quickstart.lua", "-n", "4", "svg=/dev/null/x.svg" }, "recipes/quickstart.lua:12:",
      "svg | /dev/null/x.svg: | Not a directory")
    refused(2, { "run", TOY, "-n", "4", "device=tpu" }, "device | tpu", "cpu")
  end)

  it("does not train N times alone where another launcher wants N ranks", function()
    local ended = program.run({ "run", TOY, "mesh=1x1" }, "WORLD_SIZE=4 RANK=1")
    assert.equal(2, ended.status)
    has(ended.err, "rank 1 of 4 | rendezvous")
    ended = program.run({ "run", TOY }, "WORLD_SIZE=4 RANK=1 MASTER_ADDR=127.0.0.1")
    has(ended.err, "rank 1 of 4 | MASTER_PORT is not set | MOONSHARD_RENDEZVOUS=tcp://host:port")
    ended = program.run({ "run", TOY }, "WORLD_SIZE=4 RANK=1 MASTER_PORT=29500")
    has(ended.err, "rank 1 of 4 | MASTER_ADDR is not set")
    assert.equal(0, program.run({ "run", TOY, "mesh=1x1", "steps=1" }, "WORLD_SIZE=1 RANK=0").status)
    ended = program.run({ "run", TOY, "mesh=1x1", "stps=1" }, "WORLD_SIZE=1 RANK=0")
    assert.equal(2, ended.status)
    has(ended.err, "steps")
  end)

  it("refuses rules that match nothing and shapes that do not fit", function()
    with_recipe([==[
      local ms = require "moonshard"
      local model = ms.nn.linear(4, 4)
      ms.fully_shard(model, { reshard_after_forward = { { ms.re[[^layrs]], true } } })
    ]==], function(path) refused(2, { "run", path, "-n", "2" }, path .. ":3:", "^layrs") end)
    with_recipe([==[
      local ms = require "moonshard"
      local model = ms.nn.sequential { ms.nn.linear(10, 10), ms.nn.linear(12, 5) }
      ms.fully_shard(model)
      local data = ms.data.random { inputs = 10, targets = 5 }
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse }
      train:step(data:read { 0, 1, 2, 3 })
    ]==], function(path)
      refused(2, { "run", path, "-n", "2" }, "matmul", "matmul", "in 1")
      refused(2, { "plan", path, "-n", "2" }, "matmul", "matmul", "in 1")
    end)
  end)

  it("ends a run whose loss is not finite, and names step and op", function()
    local ended = program.run({ "run", TOY, "-n", "4", "lr=1e30", "steps=20" })
    assert.equal(3, ended.status)
    assert.truthy(ended.err:find("^moonshard: [^\n]*step %d+[^\n]*\n$"))
    assert.truthy(ended.err:find("matmul", 1, true) or ended.err:find("weight", 1, true))
  end)

  it("L5 ends the other ranks when one fails or dies, and says which and why", function()
    with_recipe([==[
      local ms = require "moonshard"
      if ms.world().rank == 2 then require("ffi").cdef "int raise(int);" require("ffi").C.raise(9) end
      require("moonshard.distributed.world").barrier()
    ]==], function(path)
      local ended = program.run({ "run", path, "-n", "4" })
      assert.equal(3, ended.status)
      has(ended.err:match("^[^\n]*"), "moonshard: | rank 2 | signal 9 | Killed")
      has(ended.err, "\nmoonshard: rank 2 | Lua before")
    end)
    with_recipe([==[
      local ms = require "moonshard"
      if ms.world().rank == 1 then error("this rank does not like it", 0) end
      require("moonshard.distributed.world").barrier()
    ]==], function(path) refused(2, { "run", path, "-n", "3" }, "rank 1 | this rank does not like it") end)
  end)

  it("L5 says where a recipe called os.exit, and gives a status of its own", function()
    with_recipe([==[
      local world = require "moonshard.distributed.world"
      if world.rank == 1 then pcall(function() os.exit(7) end) end
      world.barrier()
    ]==], function(path)
      local ended = program.run({ "run", path, "-n", "2" })
      assert.equal(3, ended.status)
      line_has(ended.err, ("moonshard: | rank 1 | %s:2: | os.exit(7)"):format(path))
      ended = program.run({ "plan", path, "-n", "2", "--rank", "1" })
      assert.equal(2, ended.status)
      line_has(ended.err, ("moonshard: %s:2: | os.exit(7) | no plan"):format(path))
    end)
    with_recipe("os.exit(false)", function(path)
      refused(3, { "run", path }, path .. ":1: | os.exit(false)")
    end)
    with_recipe("io.write('done'); os.exit()", function(path)
      local ended = program.run({ "run", path, "-n", "2" })
      assert.equal(0, ended.status, ended.err)
      assert.equal("done", ended.out)
    end)
  end)

  it("L5 names a rank that leaves while another waits for it", function()
    with_recipe([==[
      local world = require "moonshard.distributed.world"
      if world.rank == 1 then os.exit(0) end
      world.barrier()
    ]==], function(path)
      local ended = program.run({ "run", path, "-n", "2" })
      assert.equal(3, ended.status)
      has(ended.err, "rank 1 | rank 0")
    end)
  end)

  it("L5 writes the ranks' output to log files on request", function()
    local folder = os.tmpname()
    os.remove(folder)
    os.execute("mkdir " .. folder)
    with_recipe('print("hello from " .. require("moonshard.distributed.world").rank)', function(path)
      local ended = program.run({ "run", path, "-n", "2", "--log-dir", folder .. "/logs" })
      assert.equal(0, ended.status, ended.err)
      assert.equal("hello from 0\n", ended.out)
    end)
    for rank = 0, 1 do
      local file = assert(io.open(("%s/logs/rank-%d.log"):format(folder, rank)))
      assert.truthy(file:read("*a"):find(("^%%d+%%-%%d+%%-%%d+T[%%d:.]+Z out  hello from %d\n$"):format(rank)))
      file:close()
    end
    os.execute("rm -r " .. folder)
  end)

  it("L5 refuses settings that would put all ranks on one core", function()
    local ended = program.run({ "run", TOY, "-n", "4", "steps=1" }, "OMP_PROC_BIND=true")
    assert.equal(2, ended.status)
    line_has(ended.err, "moonshard: | OMP_PROC_BIND | --pin | unset")
    assert.equal(0, program.run({ "run", TOY, "mesh=1x1", "steps=1" }, "OMP_PROC_BIND=true").status)
  end)

  it("L5 pins ranks to cores", function()
    local list = program.run({ "doctor", "--json" }).out:match('"core_list":"([%d,-]+)"')
    local core = list:match("^%d+")
    with_recipe("print(io.open('/proc/self/status'):read('*a'):match('Cpus_allowed_list:%s*(%S+)'))", function(path)
      assert.equal(core .. "\n", program.run({ "run", path, "--pin", core }).out)
      assert.equal(list .. "\n", program.run({ "run", path, "--pin", "none" }).out)
    end)
  end)

  it("L5 shows rank 0's output, or all ranks' with their prefixes", function()
    with_recipe('print("hello from " .. require("moonshard.distributed.world").rank)', function(path)
      assert.equal("hello from 0\n", program.run({ "run", path, "-n", "3" }).out)
      local all = program.run({ "run", path, "-n", "3", "--log-ranks", "all" }).out
      for rank = 0, 2 do
        has(all, ("[rank %d] hello from %d\n"):format(rank, rank))
      end
    end)
  end)

  it("L7 ends with 130 after Ctrl-C", function()
    with_recipe([==[
      local ms = require "moonshard"
      local ffi = require "ffi"
      ffi.cdef "int getppid(void); int kill(int, int);"
      if ms.world().rank == 0 then ffi.C.kill(ffi.C.getppid(), 2) end
      local data = ms.data.text { files = "recipes", seq = 8, batch = 1 }
      for _ in data:batches(1e9) do end
    ]==], function(path)
      local ended = program.run({ "run", path, "-n", "2" })
      assert.equal(130, ended.status)
      assert.truthy(ended.err:find("moonshard: interrupted\n$"), ended.err)
    end)
  end)

  it("L7 ends a rank that never reaches the engine, after a time that it prints, with its lines written", function()
    with_recipe([==[
      local ms = require "moonshard"
      local ffi = require "ffi"
      ffi.cdef "int getppid(void); int kill(int, int);"
      local data = ms.data.random { inputs = 4, targets = 2 }
      local train = ms.trainer { model = ms.nn.linear(4, 2), optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      for step = 1, 3 do ms.log(step, train:step(data:read { 0, 1 })) end
      if ms.world().rank == 0 then ffi.C.kill(ffi.C.getppid(), 2) end
      if ms.world().rank == 1 then
        local x = 0
        for i = 1, math.huge do x = x + i end -- compiled: no hook is seen, and nothing asks the engine
      end
      require("moonshard.distributed.world").barrier()
    ]==], function(path)
      local metrics = os.tmpname()
      local ended = program.run({ "run", path, "-n", "2", "--metrics", metrics })
      assert.equal(130, ended.status)
      has(ended.err:match("[^\n]*\n$"), "moonshard: | interrupted | rank 1 | 5 s | killed")
      local lines = 0
      for line in io.lines(metrics) do
        lines = lines + 1
        assert.equal(lines, tonumber(line:match('"step":(%d+)')))
      end
      os.remove(metrics)
      assert.equal(3, lines)
    end)
  end)

  it("passes --timeout on to the ranks", function()
    with_recipe([==[
      local ms = require "moonshard"
      local ended = ms.args { ended = "" }.ended
      if ms.world().rank == 1 then
        repeat local file = io.open(ended) until file
      end
      local ok, raised = pcall(require("moonshard.distributed.world").barrier)
      if not ok then -- rank 1 may find that all have entered, before it hears that rank 0 gave up
        io.open(ended, "w"):close()
        error(raised, 0)
      end
    ]==], function(path)
      local waited = scratch.path()
      local ended = program.run({ "run", path, "-n", "2", "--timeout", "0.4", "ended=" .. waited })
      assert.equal(3, ended.status)
      has(ended.err, "0.4")
    end)
    local ended = program.run({ "run", TOY, "-n", "2" }, "MOONSHARD_TIMEOUT=soon")
    assert.equal(2, ended.status)
    line_has(ended.err, 'MOONSHARD_TIMEOUT="soon" | seconds')
  end)

  it("trains on a mesh and writes metrics", function()
    local metrics = os.tmpname()
    local ended = program.run({ "run", TOY, "-n", "4", "steps=30", "--metrics", metrics })
    assert.equal(0, ended.status, ended.err)
    assert.equal("", ended.err)
    local lines, losses = 0, {}
    for line in io.lines(metrics) do
      lines = lines + 1
      assert.equal(lines, tonumber(line:match('"step":(%d+)')))
      losses[lines] = tonumber(line:match('"loss":([^,]+)'))
      for _, key in ipairs({ "grad_norm", "lr", "tokens", "tokens_per_s", "step_ms", "data_ms", "peak_bytes" }) do
        assert.truthy(line:find(('"%s":[%%d.e+-]+'):format(key)))
      end
      assert.truthy(line:find('"comm_bytes":{"replicate":[%d.]+,"shard":[%d.]+}'))
    end
    os.remove(metrics)
    assert.equal(30, lines)
    assert.is_true(losses[30] < 0.5 * losses[1])
  end)

  it("trains the same on every mesh that shares the batch", function()
    local function last_loss(ranks, mesh)
      local ended = program.run({ "run", TOY, "-n", ranks, "mesh=" .. mesh, "steps=20", "batch=" .. 16 / ranks })
      assert.equal(0, ended.status, ended.err)
      return tonumber(ended.out:match("step 20/20  loss ([%d.]+)"))
    end
    local expected = last_loss("1", "1x1")
    for _, shape in ipairs({ { "2", "1x2" }, { "2", "2x1" }, { "4", "2x2" }, { "4", "1x4" } }) do
      assert.is_true(math.abs(last_loss(shape[1], shape[2]) - expected) < 1e-4 * expected + 1e-4)
    end
  end)

  it("prints the devices and limits of the machine", function()
    local text = program.run({ "doctor" })
    assert.equal(0, text.status, text.err)
    has(text.out, "core | memory | control group | memfd | oneDNN | PCRE2 | LuaJIT | libcuda | files")
    local json = program.run({ "doctor", "--json" })
    assert.truthy(json.out:find('^{"cpu":{.*"cores":%d+,.*}\n$'))
    assert.equal("", json.err)
  end)

  it("H9 doctor says which transport auto takes, and whether there is UCX", function()
    local found = program.run({ "doctor" }, "UCX_TLS=tcp MOONSHARD_UCX_LIBRARY=/nowhere/libucp.so").out
    has(found, "between hosts | tcp: | RDMA | /nowhere/libucp.so | libucx0 | MOONSHARD_UCX_LIBRARY")
    local chosen = program.run({ "doctor" }, "MOONSHARD_TRANSPORT=ucx MOONSHARD_UCX_LIBRARY=/nowhere/libucp.so").out
    has(chosen, "between hosts | MOONSHARD_TRANSPORT=ucx | /nowhere/libucp.so")
    has(program.run({ "doctor" }, "MOONSHARD_TRANSPORT=udp").out, "between hosts | udp | auto | mpi")
  end)

  it("H9 passes --transport on to the ranks", function()
    with_recipe('print(os.getenv("MOONSHARD_TRANSPORT"))', function(path)
      assert.equal("tcp\n", program.run({ "run", path, "-n", "2", "--transport", "tcp" }).out)
      assert.equal("ucx\n", program.run({ "run", path, "--transport", "ucx" }, "MOONSHARD_TRANSPORT=tcp").out)
    end)
    refused(2, { "run", TOY, "--transport", "udp" }, "--transport udp | auto | tcp | ucx | mpi")
    local ended = program.run({ "run", TOY, "-n", "2" }, "MOONSHARD_TRANSPORT=udp")
    assert.equal(2, ended.status)
    line_has(ended.err, 'MOONSHARD_TRANSPORT="udp" | auto')
  end)
end)
