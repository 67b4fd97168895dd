-- The text of `moonshard help`: every command with its options, in full or for one command.

local help = {}

help.text = [==[
moonshard trains neural networks whose parameters, gradients and optimizer state are sharded over a mesh of ranks.

  moonshard run RECIPE.lua [-n RANKS] [key=value ...]    train on RANKS local ranks (default 1)
      --metrics FILE     write one JSON object per step; a resumed run appends to the file
      --tensorboard DIR  write a TensorBoard event file
      --log-ranks all    show the output of every rank, each line prefixed with "[rank N] "
      --log-dir DIR      also write the output of each rank to DIR/rank-N.log, with timestamps
      --progress STYLE   auto (a bar on a terminal, plain lines elsewhere and under other launchers), bar or plain
      --pin CORES        auto (separate cores for each rank if there are enough), none, or a list: 0-3,8-11
      --trace FILE       write a trace of some steps, for ui.perfetto.dev and `moonshard trace`
      --trace-steps A-B  steps to trace (default 2-4)
      --hosts LIST       run on several hosts from this one: a:4,b:4, node[01-04]:8 or @FILE; a name without a number
                         has -n RANKS; the working folder is expected on every host
      --agent COMMAND    starts a program on a host; the host's name follows it (default ssh -o BatchMode=yes)
      --env NAME[=VALUE] also pass this variable to the hosts, besides MOONSHARD_*, OMP_* and LUA_*
      --remote-moonshard PATH   the executable on the hosts, if it is not where it is here
      --nodes N --node-rank R --rendezvous tcp://HOST:PORT
                         run as node R of N, each with RANKS ranks; all nodes connect to HOST, which is node 0; under
                         torchrun, mpirun or srun omit these and -n: run joins their ranks
      --transport NAME   how hosts exchange bytes: tcp, ucx, mpi, or auto (default): ucx over RDMA, otherwise tcp;
                         `moonshard doctor` says which one auto takes
      --device D         cpu (default) or cuda: one rank per GPU, numbered on each host by LOCAL_RANK
      --cluster C        a description of these devices (moonshard calibrate): metrics then have the MFU
      --cuda-graph       capture each phase on the GPU once, then replay it
      --nccl-windows     place communication buffers of GPUs in NCCL's registered memory (NCCL 2.27 or later)
      --nccl-copy-engines   also run all-gathers on copy engines, which leaves the multiprocessors free (2.28 or later)
      --sm-carveout N    matrix products that can run at the same time as a collective leave N of the multiprocessors
                         to it, and such collectives share N thread blocks of NCCL (default 0: products use all)
      --timeout S        seconds to wait for another rank before reporting an error (default 300)
      --grace S          seconds that ranks may take to finish after SIGTERM (default 30 if they save first, else 5)
      --inject-delay P:T[@R],...   delay operations for testing, e.g. gather:100ms,update:1s@2; results do not change
  moonshard plan RECIPE.lua -n RANKS [--ranks-per-node M] [--rank R] [--device D] [--cluster C] [--json]
                       [--summary | --passes | --memory | --roofline] [--sm-carveout N] [key=value ...]
                         compile the step of rank R (default 0) without running it: memory, collectives, instructions;
                         --passes: the time of each compiler pass, and what it changed; --memory: what is in use over
                         the instructions, as a curve; --cluster: use the device and the ranks per node of a described
                         cluster, and decide policies that are "auto" for it;
                         --roofline: how long each op would take at the rates of that cluster's devices; --sm-carveout:
                         how many products it concerns (see run)
  moonshard explain RECIPE.lua -n RANKS [--ranks-per-node M] [--rank R] [--device D] [--cluster C] [--all] [--json]
                    [key=value ...]
                         list which rule made each decision and its cost, what sets the memory peak, and what to change
  moonshard price RECIPE.lua -n RANKS --cluster C [--mesh-list M,M,... [--processes P] | --trace FILE | --page FILE]
                  [--json] [key=value ...]
                         predict the time of a step, tokens/s, MFU, exposed communication and memory on a described
                         cluster: a name like h100x8-400g (`moonshard price` alone lists them), or the path of a file;
                         --mesh-list "1x512,64x8": a table of meshes, divided among P processes (default: one per core
                         for a long list); --trace: the predicted step as a trace; --page: as a page with its
                         timeline and its memory
                  --cluster C --constants [--json]
                         list the constants of a cluster with their sources
  moonshard calibrate [-n RANKS] [--device D] [--out FILE.lua] [--quick]
                         measure this machine in two minutes by training small models, and write a description of it
                         for `price` (default cluster.lua); -n: the most ranks of a node (default one per core or GPU);
                         --quick: few sizes, each once, in seconds
                      --hosts LIST [--agent COMMAND] [--env NAME[=VALUE]] [--remote-moonshard PATH]
                      [--rendezvous PLACE] [--transport NAME] [--timeout S]
                         also measure the links between hosts like this one: their rates, their latency, and the
                         processor time of each byte
  moonshard tune RECIPE.lua -n RANKS --cluster C [--memory SIZE] [--mesh M] [--page FILE] [--json]
                 [key=value ...]
                         find the fastest mesh and rules (units, resharding, prefetching, recomputation, optimizer state
                         over replicas) on a described cluster, and print them as Lua to paste; --memory: how much
                         memory of a device a rank may use, like 72GiB (default: all); --mesh: try only this one;
                         --page: a page of all plans that were tried, by memory and speed
  moonshard check RECIPE.lua -n RANKS [--steps K] [--rtol X] [--timeout S] [--json]
                  [--transport NAME] [--nodes N --node-rank R --rendezvous tcp://HOST:PORT]
                  [--hosts LIST [--agent COMMAND] [--env NAME[=VALUE]] [--remote-moonshard PATH]] [key=value ...]
                         compare the first K steps (default 5) on RANKS ranks with one rank on the same global batches:
                         losses, gradient norms, parameters
  moonshard sweep SWEEP.lua [--plan] [--price C [--run]] [--ranks-per-node M] [--resume] [--json] [key=value ...]
                         run a recipe over a grid of settings (ms.sweep): table, CSV, JSON and a page of charts
                  --hosts LIST [--agent COMMAND] [--env NAME[=VALUE]] [--remote-moonshard PATH]
                          [--rendezvous PLACE]
                         run every point on several hosts, as `run` does; the first must see the folder of the results
                  --compare OLD NEW [--out DIR] [--json]
                         compare two finished sweeps (folders, results.json or results.jsonl) point by point: the
                         change in speed, and whether it exceeds the variation between runs; charts in DIR/compare.html
  moonshard ps [--hosts LIST [--agent COMMAND] [--remote-moonshard PATH]] [--json]
                         list the runs of this host, or of several, and what each of their ranks does
  moonshard trace FILE [--top ROWS] [--json]             validate a trace and summarise it by op, unit and rank
                  --compare PREDICTED REAL [--top ROWS] [--json]
                         compare two traces by phase, op, collective and unit, the largest difference first
  moonshard repl [-n RANKS] [--device D] [--timeout S] [--transport NAME]
                 [--nodes N --node-rank R --rendezvous tcp://HOST:PORT]
                 [--hosts LIST [--agent COMMAND] [--env NAME[=VALUE]] [--remote-moonshard PATH]]
                 [RECIPE.lua] [key=value ...]
                         open a prompt whose lines run on every rank; runs the recipe first, if given
  moonshard inspect FILE|DIR [--json] [--no-checksums] [--end ID]
                         describe a safetensors file or an indexed folder of them (shapes, sizes, checksums), a
                         checkpoint (step, mesh, parameters and files, with checksums verified), a token file (--end:
                         the id that ends documents), a text file, or a tokenizer.json
  moonshard export CHECKPOINT OUT [--huggingface [--tokenizer FOLDER] | --adapters] [--ema | --optimizer]
                   [--no-checksums]
                         write the full parameters of a checkpoint, or the averages of its weights (--ema), to
                         OUT/model.safetensors; --huggingface: make OUT a folder that Hugging Face's library loads,
                         with the adapters of ms.lora merged, and copy the tokenizer, the chat template and
                         generation_config.json of FOLDER; --adapters: write these alone, as a folder for PEFT;
                         --optimizer: add its state, in OUT/optimizer.safetensors, in f32 under PyTorch's names
  moonshard generate RECIPE.lua --checkpoint DIR | FOLDER [-n RANKS] [--prompt TEXT] [--tokenizer tokenizer.json]
                     [--no-special] [--tokens N] [--temperature T] [--top-k K] [--top-p P] [--stop TOKEN] [--seed S]
                     [--ema] [--timeout S] [--transport NAME] [--nodes N --node-rank R --rendezvous tcp://HOST:PORT]
                     [--hosts LIST [--agent COMMAND] [--env NAME[=VALUE]] [--remote-moonshard PATH]] [key=value ...]
                         continue a prompt with the recipe's model and the checkpoint's weights, or their averages
                         (--ema), or with the model in a Hugging Face folder; it computes in the folder's dtype: f32 for
                         float32, and for bfloat16 and float16 bf16 where the CPU computes in it, else f32; dtype=f32
                         or dtype=bf16 chooses another, and ignore=a,b reads it without these fields of its
                         config.json; the text ends at the folder's eos_token_id, and at --stop;
                         temperature, top_k, top_p and do_sample of its generation_config.json, or of its config.json
                         without that file, are the defaults; the prompt gets the tokens around it that the
                         tokenizer's files name, such as a BOS, unless --no-special is given
  moonshard tokenize --tokenizer tokenizer.json [--out FILE.bin] [--begin TOKEN] [--end TOKEN] [--field NAME]
                     [-j THREADS] [--replace-invalid] [--raw] [--json] FILE...
                         convert text files, one document each, to one token file, or JSON lines, each a document: the
                         text in the field NAME (text); --raw: take the bytes of any file as they are; --decode
                         FILE.bin... prints the text
  moonshard doctor [--json]                              report this machine's hardware, libraries and limits
  moonshard help [COMMAND]                               show this text, or one command; COMMAND --help does the same
  moonshard --version

key=value overrides a setting of the recipe (see its ms.args).
Exit status: 0 on success; 2 for bad input; 3 if a run or a point of a sweep failed, or a check found differences; 130
after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
]==]

-- Text shared by several commands follows the last command.
local COMMANDS, SETTINGS, STATUS = help.text:match("\n\n(  moonshard .-\n)\n(key=value[^\n]*\n)(Exit status.*)$")

---The help text of one command.
---@param command string
---@return string? text nil for an unknown command
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
