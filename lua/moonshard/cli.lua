-- The command line of the executable: which command, and what happens to its errors.

local nearest = require("moonshard.nearest")
local status = require("moonshard.cli.status")
local refuse = status.refuse

local cli = {}

local HELP = [[
moonshard trains neural networks whose parameters, gradients and optimizer state are sharded over a mesh of ranks.

  moonshard run RECIPE.lua [-n RANKS] [key=value ...]    train on RANKS local ranks (1 unless told)
      --metrics FILE     write one JSON object a step
      --tensorboard DIR  write an event file that TensorBoard shows
      --log-ranks all    show every rank's output, "[rank N] " before each line
      --log-dir DIR      write every rank's output to DIR/rank-N.log too, with timestamps
      --pin CORES        auto (each rank to its own cores where there are enough), none, or a list: 0-3,8-11
      --trace FILE       write a trace of some steps, for ui.perfetto.dev and `moonshard trace`
      --trace-steps A-B  which (2-4)
      --nodes N --node-rank R --rendezvous tcp://HOST:PORT
                         be node R of N, each with RANKS ranks, which meet at node 0's HOST; under torchrun, mpirun
                         or srun leave -n and these out: run joins their ranks
      --device D         cpu (unless told) or cuda: one rank a GPU, by its place on its host (LOCAL_RANK)
      --cuda-graph       capture each phase on the GPU once, and replay it
      --timeout S        seconds until waiting for another rank is an error (300)
      --inject-delay P:T[@R],...   be late on purpose, e.g. gather:100ms,update:1s@2: nothing but time may change
  moonshard plan RECIPE.lua -n RANKS [--rank R] [--device D] [--json] [key=value ...]
                         compile rank R's step (0 unless told) without running it: memory, collectives, instructions
  moonshard explain RECIPE.lua -n RANKS [--rank R] [--device D] [--all] [--json] [key=value ...]
                         which rule decided what and what it costs, what sets the memory peak, and what to change
  moonshard check RECIPE.lua -n RANKS [--steps K] [--rtol X] [--json] [key=value ...]
                         the first K steps (5) on RANKS ranks beside one rank on the same global batches: losses,
                         gradient norms, parameters
  moonshard sweep SWEEP.lua [--resume] [--json] [key=value ...]
                         run a recipe over a grid of settings (ms.sweep): table, CSV, JSON and a page of charts
  moonshard ps [--json]                                  the runs of this host, and where each of their ranks is
  moonshard trace FILE [--json]                          check a trace and sum it up by op, unit and rank
  moonshard repl [-n RANKS] [--device D] [RECIPE.lua] [key=value ...]
                         a prompt whose lines run on every rank; a recipe is run first
  moonshard inspect FILE|DIR [--json] [--no-checksums]
                         tensors of a safetensors file, or of a folder with an index: shapes, sizes, checksums; or a
                         checkpoint: its step, mesh, parameters and files, all compared with their checksums
  moonshard export CHECKPOINT OUT [--huggingface] [--ema] [--no-checksums]
                         the parameters of a checkpoint, or the averages of its weights (--ema), in full, as
                         OUT/model.safetensors; or OUT as a folder that Hugging Face's library loads
  moonshard generate RECIPE.lua --checkpoint DIR | FOLDER [-n RANKS] [--prompt TEXT] [--tokenizer tokenizer.json]
                     [--tokens N] [--temperature T] [--top-k K] [--top-p P] [--stop TOKEN] [--seed S] [--ema]
                     [key=value ...]
                         continue a text with the recipe's model and the checkpoint's weights, or their averages
                         (--ema), or with the model of a Hugging Face folder
  moonshard tokenize --tokenizer tokenizer.json [--out FILE.bin] [--begin TOKEN] [--end TOKEN] [-j THREADS]
                     [--replace-invalid] [--json] FILE...
                         text files, each a document, to one token file; --decode FILE.bin... gives the text again
  moonshard doctor [--json]                              what this machine has
  moonshard help
  moonshard --version

key=value overrides a setting of the recipe (see its ms.args).
Exit status: 0; 2 for bad input; 3 for a run or a point of a sweep that failed; 130 after Ctrl-C.
]]

local COMMANDS = {
  run = "moonshard.cli.run",
  plan = "moonshard.cli.plan",
  explain = "moonshard.cli.explain",
  check = "moonshard.cli.check",
  sweep = "moonshard.cli.sweep",
  repl = "moonshard.cli.repl",
  inspect = "moonshard.cli.inspect",
  export = "moonshard.cli.export",
  generate = "moonshard.cli.generate",
  tokenize = "moonshard.cli.tokenize",
  doctor = "moonshard.cli.doctor",
  ps = "moonshard.cli.ps",
  trace = "moonshard.cli.trace",
}

local function print_help()
  io.write(HELP)
  return status.OK
end

local function print_version()
  io.write("moonshard ", require("moonshard").version, "\n")
  return status.OK
end

local PRINTED = {
  help = print_help, ["--help"] = print_help, ["-h"] = print_help, ["--version"] = print_version,
}

local function refuse_command(command)
  if command:match("%.lua$") then
    refuse("MS_ENAME", "unknown command %s; to run a recipe: moonshard run %s", command, command)
  end
  local known = {}
  for _, names in ipairs({ COMMANDS, PRINTED }) do
    for name in pairs(names) do
      known[name] = true
    end
  end
  refuse("MS_ENAME", "unknown command %s: %s", command, nearest.advice(command, known))
end

local function dispatch(arguments)
  local command = arguments[1]
  if not command then
    refuse("MS_EINVAL", "no command; `moonshard help` lists them")
  elseif PRINTED[command] then
    return PRINTED[command]()
  elseif not COMMANDS[command] then
    refuse_command(command)
  end
  local rest = { unpack(arguments, 2) }
  for _, argument in ipairs(rest) do
    if argument == "--help" or argument == "-h" then return print_help() end
  end
  return require(COMMANDS[command]).main(rest)
end

---Runs a command; an error is told in one line on standard error.
---@param arguments string[]
---@return integer exit status
function cli.main(arguments)
  local ok, result = pcall(dispatch, arguments)
  if ok then return result end
  io.stderr:write("moonshard: ", tostring(result), "\n")
  return status.of(result)
end

return cli
