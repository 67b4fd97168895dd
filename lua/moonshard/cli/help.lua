-- What `moonshard help` prints, whole or for one command: every command with the options that it takes.

local help = {}

help.text = [[
moonshard trains neural networks whose parameters, gradients and optimizer state are sharded over a mesh of ranks.

  moonshard run RECIPE.lua [-n RANKS] [key=value ...]    train on RANKS local ranks (1 unless told)
      --metrics FILE     write one JSON object a step; a run that goes on from a checkpoint goes on in the file
      --tensorboard DIR  write an event file that TensorBoard shows
      --log-ranks all    show every rank's output, "[rank N] " before each line
      --log-dir DIR      write every rank's output to DIR/rank-N.log too, with timestamps
      --progress STYLE   auto (a bar on a terminal, plain lines elsewhere and under other launchers), bar or plain
      --pin CORES        auto (each rank to its own cores where there are enough), none, or a list: 0-3,8-11
      --trace FILE       write a trace of some steps, for ui.perfetto.dev and `moonshard trace`
      --trace-steps A-B  which (2-4)
      --nodes N --node-rank R --rendezvous tcp://HOST:PORT
                         be node R of N, each with RANKS ranks, which meet at node 0's HOST; under torchrun, mpirun
                         or srun leave -n and these out: run joins their ranks
      --device D         cpu (unless told) or cuda: one rank a GPU, by its place on its host (LOCAL_RANK)
      --cuda-graph       capture each phase on the GPU once, and replay it
      --nccl-windows     what GPUs communicate lies in NCCL's own memory, registered (NCCL 2.27 or later)
      --nccl-copy-engines   that, and all-gathers by copy engines, which take no multiprocessors (2.28 or later)
      --timeout S        seconds until waiting for another rank is an error (300)
      --grace S          seconds that ranks have to end after SIGTERM (30 where they save first, else 5)
      --inject-delay P:T[@R],...   be late on purpose, e.g. gather:100ms,update:1s@2: nothing but time may change
  moonshard plan RECIPE.lua -n RANKS [--ranks-per-node M] [--rank R] [--device D] [--json]
                       [--summary | --passes] [key=value ...]
                         compile rank R's step (0 unless told) without running it: memory, collectives, instructions;
                         --passes: what each pass of the compiler took and changed
  moonshard explain RECIPE.lua -n RANKS [--ranks-per-node M] [--rank R] [--device D] [--all] [--json] [key=value ...]
                         which rule decided what and what it costs, what sets the memory peak, and what to change
  moonshard check RECIPE.lua -n RANKS [--steps K] [--rtol X] [--timeout S] [--json] [key=value ...]
                         the first K steps (5) on RANKS ranks beside one rank on the same global batches: losses,
                         gradient norms, parameters
  moonshard sweep SWEEP.lua [--plan] [--ranks-per-node M] [--resume] [--json] [key=value ...]
                         run a recipe over a grid of settings (ms.sweep): table, CSV, JSON and a page of charts
                  --compare OLD NEW [--out DIR] [--json]
                         two finished sweeps (their folders, or results.json or results.jsonl), point by point: how
                         much faster, and whether by more than the runs differ; DIR/compare.html has charts
  moonshard ps [--json]                                  the runs of this host, and where each of their ranks is
  moonshard trace FILE [--top ROWS] [--json]             check a trace and sum it up by op, unit and rank
  moonshard repl [-n RANKS] [--device D] [--timeout S] [RECIPE.lua] [key=value ...]
                         a prompt whose lines run on every rank; a recipe is run first
  moonshard inspect FILE|DIR [--json] [--no-checksums] [--end ID]
                         tensors of a safetensors file, or of a folder with an index: shapes, sizes, checksums; or a
                         checkpoint: its step, mesh, parameters and files, all compared with their checksums; or a
                         token file (with ends of documents), a text, a tokenizer.json: how many tokens, the largest
  moonshard export CHECKPOINT OUT [--huggingface] [--ema] [--no-checksums]
                         the parameters of a checkpoint, or the averages of its weights (--ema), in full, as
                         OUT/model.safetensors; or OUT as a folder that Hugging Face's library loads
  moonshard generate RECIPE.lua --checkpoint DIR | FOLDER [-n RANKS] [--prompt TEXT] [--tokenizer tokenizer.json]
                     [--tokens N] [--temperature T] [--top-k K] [--top-p P] [--stop TOKEN] [--seed S] [--ema]
                     [--timeout S] [--nodes N --node-rank R --rendezvous tcp://HOST:PORT] [key=value ...]
                         continue a text with the recipe's model and the checkpoint's weights, or their averages
                         (--ema), or with the model of a Hugging Face folder
  moonshard tokenize --tokenizer tokenizer.json [--out FILE.bin] [--begin TOKEN] [--end TOKEN] [-j THREADS]
                     [--replace-invalid] [--json] FILE...
                         text files, each a document, to one token file; --decode FILE.bin... gives the text again
  moonshard doctor [--json]                              what this machine has
  moonshard help [COMMAND]                               this, or what a command takes; COMMAND --help does the same
  moonshard --version

key=value overrides a setting of the recipe (see its ms.args).
Exit status: 0; 2 for bad input; 3 for a run or a point of a sweep that failed, or a check that differs; 130 after
Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
]]

-- What concerns more than one command stands behind the last of them.
local COMMANDS, SETTINGS, STATUS = help.text:match("\n\n(  moonshard .-\n)\n(key=value[^\n]*\n)(Exit status.*)$")

---What one command takes.
---@param command string
---@return string? text nil where there is no such command
function help.of(command)
  local lines, inside = {}, false
  for line in COMMANDS:gmatch("[^\n]*\n") do
    local name = line:match("^  moonshard (%S+)")
    if name then inside = name == command end
    if inside then lines[#lines + 1] = line end
  end
  if not lines[1] then return nil end
  local text = table.concat(lines)
  return text .. "\n" .. (text:find("key=value", 1, true) and SETTINGS or "") .. STATUS
end

return help
