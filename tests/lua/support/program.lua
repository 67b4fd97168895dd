-- Runs the executable under test and gives what it printed.

local assert = require("luassert")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")

local program = {}

local function quote(word)
  return "'" .. word:gsub("'", "'\\''") .. "'"
end

---@class Ended
---@field status integer exit status
---@field out string standard output
---@field err string standard error

local function command(arguments, environment)
  local binary = arguments.binary or assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")
  local words = { environment or "", quote(binary) }
  for _, argument in ipairs(arguments) do words[#words + 1] = quote(argument) end
  return table.concat(words, " ")
end

---Runs MOONSHARD_BIN once for every list of arguments, all at the same time, from the root of the tree. A list may
---have an `environment`, as `run` takes it, and a `binary`, a copy of MOONSHARD_BIN.
---@param runs table<string, string[]>
---@return table<string, Ended>
function program.run_all(runs)
  local script, files, ended = {}, {}, {}
  for name, arguments in pairs(runs) do
    local file = { out = os.tmpname(), err = os.tmpname(), status = os.tmpname() }
    script[#script + 1] = ("{ { %s; } >%s 2>%s </dev/null; echo $? >%s; } &"):format(
      command(arguments, arguments.environment), file.out, file.err, file.status)
    files[name] = file
  end
  script[#script + 1] = "wait"
  os.execute(table.concat(script, "\n"))
  for name, file in pairs(files) do
    local status = tonumber(scratch.read(file.status))
    ended[name] = { out = scratch.read(file.out), err = scratch.read(file.err), status = status }
    for _, path in pairs(file) do os.remove(path) end
  end
  return ended
end

---Runs of `moonshard check` that a spec lists before its tests, each made when a test asks for it.
---@param runs table<string, string[]>
---@return fun(name: string): Ended of
---@return fun(...: string) equals_one_rank asserts that each of these, or where not all cases run the last of them,
---  found no difference
function program.checks(runs)
  local ended = {}
  local function make(names)
    local missing = {}
    for _, name in ipairs(names) do missing[name] = not ended[name] and runs[name] or nil end
    for name, result in pairs(program.run_all(missing)) do ended[name] = result end
  end
  local function of(name)
    make({ name })
    return ended[name]
  end
  return of, function(...)
    local names = breadth.few({ ... })
    make(names)
    for _, name in ipairs(names) do
      assert.equal(0, of(name).status, name .. ": " .. of(name).err .. of(name).out)
      has(of(name).out, "equal within tolerance | parameters")
    end
  end
end

---Runs MOONSHARD_BIN with arguments, from the root of the tree.
---@param arguments string[]
---@param environment string? assignments before the command: "TERM=dumb"
---@param input string? what it reads from a pipe; nothing unless told
---@return Ended
function program.run(arguments, environment, input)
  local out, err, status = os.tmpname(), os.tmpname(), os.tmpname()
  local typed = input and program.recipe(input)
  os.execute(("%s { %s; } >%s 2>%s %s; echo $? >%s"):format(typed and ("cat %s |"):format(typed) or "",
    command(arguments, environment), out, err, typed and "" or "</dev/null", status))
  if typed then os.remove(typed) end
  local ended = { out = scratch.read(out), err = scratch.read(err), status = tonumber(scratch.read(status)) }
  for _, path in ipairs({ out, err, status }) do os.remove(path) end
  return ended
end

---What lets MOONSHARD_BIN take the emulated libraries of tests/emulated_cuda for those of CUDA, NCCL, cuBLASLt and
---cuDNN, with the CPU's kernels; algorithms are not timed, so nothing is kept on disk.
---@param more string? further assignments
---@return string environment
function program.emulated_cuda(more)
  local folder = assert(os.getenv("MOONSHARD_BIN")):match("^(.*)/") .. "/tests/emulated/"
  return ("MOONSHARD_CUDA_LIBRARY=%slibmoonshard_cuda_host.so MOONSHARD_NCCL_LIBRARY=%slibnccl_emulated.so "
    .. "MOONSHARD_CUBLASLT_LIBRARY=%slibcublaslt_emulated.so MOONSHARD_CUDA_MATMUL_TUNE=0 "
    .. "MOONSHARD_CUDNN_LIBRARY=%slibcudnn_emulated.so MOONSHARD_EMULATE_STREAMS=threads %s"):format(
    folder, folder, folder, folder, more or "")
end

---Writes a recipe to a temporary file; the caller removes it.
---@param source string
---@return string path
function program.recipe(source)
  local path = os.tmpname()
  local file = assert(io.open(path, "wb"))
  file:write(source)
  file:close()
  return path
end

---Asserts that a run ends with the status and prints one line, "moonshard: " and a text that contains the facts given
---(lua/support/message.lua).
---@param status integer
---@param arguments string[]
---@param ... string
---@return string line
function program.refused(status, arguments, ...)
  local ended = program.run(arguments)
  assert.equal(status, ended.status, ended.err)
  assert.equal("", ended.out)
  local line = ended.err:match("^moonshard: ([^\n]*)\n$")
  assert.is_truthy(line, "one line was expected, but there is: " .. ended.err)
  for _, facts in ipairs({ ... }) do has(line, facts) end
  return line
end

return program
