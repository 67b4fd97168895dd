-- The commands for a machine with a GPU (tests/gpu) run through on an emulated one, so that none fails there for a
-- reason that a machine without a GPU could have told.

local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local function run(command, environment)
  local build = assert(os.getenv("MOONSHARD_BIN")):match("^(.*)/")
  local out = os.tmpname()
  local status = os.execute(("env %s %s --build %s %s >%s 2>&1 </dev/null"):format(
    program.emulated_cuda("PYTHON=false CUDA_HOME=/proc/nowhere " .. (environment or "")), command:match("^%S+"), build,
    command:match("^%S+(.*)"), out))
  local file = assert(io.open(out))
  local text = file:read("*a")
  file:close()
  os.remove(out)
  return status, text
end

-- A machine without Python gets one that knows a single folder of packages, PYTHONPATH.
local function provide_python(home)
  if os.execute("command -v python3 >/dev/null") == 0 then return end
  scratch.write(home .. "/python3", "#!/bin/sh\necho \"$PYTHONPATH\"\n")
  os.execute("chmod +x " .. home .. "/python3")
end

local function contains(text, ...)
  for _, part in ipairs({ ... }) do assert.truthy(text:find(part), ("%q is not in: %s"):format(part, text)) end
end

describe("the commands for a GPU", function()
  if os.getenv("MOONSHARD_CONFIG") ~= "release" then return end

  -- NVIDIA's tool is a script here, which writes down what it is asked for: that it finds anything is its own affair,
  -- but not that every program runs under it, and that what it finds fails the command.
  it("A1 compare training with the CPU, and end with a table", function()
    local status, text = run("tests/gpu/run.sh --dry")
    assert.equal(0, status, text)
    contains(text, "pass  training, f32", "pass  NCCL, two shards, captured")
    assert.falsy(text:find("FAIL"), text)
  end)

  -- NCCL does not promise that two ranks on one GPU end; a rank alone must.
  it("A1 tell ranks on one GPU that hang from failures", function()
    local status, text = run("tests/gpu/run.sh --only replicas --each 8", "MOONSHARD_EMULATE_FAIL=lost:2")
    assert.equal(0, status, text)
    contains(text, "open  NCCL, two replicas [^\n]*inconclusive", "\n1 inconclusive: [^\n]*two GPUs")
    status, text = run("tests/gpu/run.sh --only recomputation --each 2", "MOONSHARD_EMULATE_JITTER=1000000")
    assert.equal(256, status, text)
    contains(text, "FAIL  training, recomputation .*status 124")
    assert.equal(512, (run("tests/gpu/run.sh --only nothing")))
  end)

  it("A1 run kernels' tests under compute-sanitizer, and end with a table #all", function()
    local home = scratch.path()
    os.execute("mkdir -p " .. home .. "/bin")
    local tool, log = home .. "/bin/compute-sanitizer", home .. "/log"
    scratch.write(tool, ([==[#!/bin/bash
      echo "$@" >>%s
      tool=$2
      while [ "${1#-}" != "$1" ]; do shift 2; done
      case $tool,$1 in racecheck,*norm) echo "a race"; exit 9 ;; racecheck,* | synccheck,*) exit 0 ;; esac
      [ "${1##*/}" = moonshard ] || [ "${1##*/}" = test_kernels_norm ] || exit 0
      exec "$@"
    ]==]):format(log))
    os.execute("chmod +x " .. tool)
    local status, text = run("tests/gpu/run.sh --dry --sanitizer", "CUDA_HOME=" .. home)
    assert.equal(256, status, text)
    local _, failed = text:gsub("FAIL", "")
    assert.equal(1, failed, text)
    contains(text, "pass  compute%-sanitizer, memory, ", "pass  compute%-sanitizer, memcheck",
      "FAIL  compute%-sanitizer, racecheck", "test_kernels_norm under racecheck:\n *a race",
      "pass  compute%-sanitizer, synccheck")
    local asked = scratch.read(log)
    contains(asked,
      "%-%-tool memcheck %-%-target%-processes all %-%-error%-exitcode 9 [^\n]*/emulated/test_kernels_attention\n")
    scratch.clear()
  end)

  it("A1 say what failed, and what there was no time for", function()
    local status, text = run("tests/gpu/run.sh --seconds 0")
    assert.equal(256, status)
    contains(text, "FAIL  training, f32 .*status 124", "FAIL  NCCL, two replicas .*status 124")
    status, text = run("tests/gpu/run.sh --sanitizer")
    assert.equal(512, status)
    contains(text, "compute%-sanitizer")
  end)

  it("A1 measure trainings and kernels, and end with a table #all", function()
    local status, text = run("tests/gpu/bench.sh --dry --models gpt2")
    assert.equal(0, status, text)
    contains(text, "alone", "gpt2: [^\n]* [%d.]+ ms ", "\nmatmul +%d+ ", "\nadamw +%d+ ",
      "\ngpt2 +moonshard +%d+ ", "\ngpt2 +moonshard_graphs +%d+ ")
  end)

  it("A1 measure products next to a kernel in place of a collective's, and end with a table", function()
    local library = os.getenv("MOONSHARD_BIN"):match("^(.*)/") .. "/tests/emulated/libstand_in_emulated.so"
    local status, text = run("tests/gpu/overlap.sh --dry 1", "MOONSHARD_STAND_IN_LIBRARY=" .. library)
    assert.equal(0, status, text)
    contains(text, "\nus +blocks +alone +fewer +overlapped +fewer +gain\n", "\nllama up +1 +[%d.]+ ")
    status, text = run("tests/gpu/overlap.sh --dry 1", "MOONSHARD_STAND_IN_LIBRARY=/proc/nowhere/lib.so")
    assert.equal(256, status, text)
    contains(text, "/proc/nowhere/lib.so: ", "gpu%-bench")
    assert.equal(512, (run("tests/gpu/overlap.sh --dry more")))
  end)

  -- As PyTorch's packages lie on a machine that has no other libraries of NVIDIA's, one of them for CUDA 12.
  it("A1 find the libraries of PyTorch's packages, of either version, and the parts that these load", function()
    local home = scratch.path()
    for _, file in ipairs({ "cublas/lib/libcublasLt.so.12", "cudnn/lib/libcudnn.so.9", "cudnn/lib/libcudnn_graph.so.9",
      "cuda_nvrtc/lib/libnvrtc.so.12", "nccl/lib/libnccl.so.2" }) do
      os.execute(("mkdir -p %s/nvidia/%s"):format(home, file:match("^(.*)/")))
      scratch.write(home .. "/nvidia/" .. file, "")
    end
    scratch.write(home .. "/ldconfig", "#!/bin/sh\n")
    os.execute("chmod +x " .. home .. "/ldconfig")
    provide_python(home)
    local function found(environment)
      local pipe = assert(io.popen(("env -u MOONSHARD_NCCL_LIBRARY -u MOONSHARD_CUBLASLT_LIBRARY " ..
        "-u MOONSHARD_CUDNN_LIBRARY PATH=%s:$PATH PYTHONPATH=%s LD_LIBRARY_PATH=/before %s bash -uc " ..
        "'. tests/gpu/libraries.sh; env' 2>&1"):format(home, home, environment)))
      local text = pipe:read("*a"):gsub(home:gsub("%p", "%%%0") .. "/nvidia/", "@")
      pipe:close()
      return "\n" .. text
    end
    contains(found(""), "\nMOONSHARD_CUBLASLT_LIBRARY=@cublas/lib/libcublasLt.so.12\n",
      "\nMOONSHARD_CUDNN_LIBRARY=@cudnn/lib/libcudnn.so.9\n", "\nMOONSHARD_NCCL_LIBRARY=@nccl/lib/libnccl.so.2\n",
      "\nLD_LIBRARY_PATH=/before:@cublas/lib:@cuda_nvrtc/lib:@cudnn/lib:@nccl/lib\n")
    os.execute(("mkdir -p %s/nvidia/cu13/lib && touch %s/nvidia/cu13/lib/libcublasLt.so.13"):format(home, home))
    contains(found("MOONSHARD_CUDNN_LIBRARY=own"), "\nMOONSHARD_CUBLASLT_LIBRARY=@cu13/lib/libcublasLt.so.13\n",
      "\nMOONSHARD_CUDNN_LIBRARY=own\n")
    scratch.write(home .. "/ldconfig",
      "#!/bin/sh\nprintf '\\tlib%s (libc6,x86-64) => /x\\n' nccl.so.2 cublasLt.so.12 cudnn.so.9\n")
    contains(found(""), "\nLD_LIBRARY_PATH=/before\n")
    assert.falsy(found(""):find("MOONSHARD_CUBLASLT_LIBRARY="))
    scratch.clear()
  end)

  it("A1 run the kernels' tests with those libraries, and through the programs that find their own", function()
    local home = scratch.path()
    os.execute(("mkdir -p %s/tests/gpu %s/nvidia/cublas/lib"):format(home, home))
    scratch.write(home .. "/nvidia/cublas/lib/libcublasLt.so.12", "")
    scratch.write(home .. "/ldconfig", "#!/bin/sh\n")
    scratch.write(home .. "/tests/gpu/test_kernels_x", "#!/bin/sh\necho \"not ok 1 - $MOONSHARD_CUBLASLT_LIBRARY\"\n")
    scratch.write(home .. "/tests/gpu/test_kernels_x.real", "#!/bin/sh\nexit 1\n")
    os.execute(("chmod +x %s/ldconfig %s/tests/gpu/*"):format(home, home))
    provide_python(home)
    local pipe = assert(io.popen(("env -u MOONSHARD_CUBLASLT_LIBRARY PATH=%s:$PATH PYTHONPATH=%s " ..
      "tests/run.sh --build %s --config gpu 2>&1"):format(home, home, home)))
    local text = pipe:read("*a")
    pipe:close()
    contains(text, "not ok 1 %- " .. home .. "/nvidia/cublas/lib/libcublasLt.so.12\n", "\n0 passed, 1 failed\n$")
    scratch.clear()
  end)

  it("A1 build the kernels for this machine's GPUs, and PTX of the newest", function()
    local home = scratch.path()
    os.execute("mkdir -p " .. home)
    local function flags(gpus, settings)
      scratch.write(home .. "/nvcc", "#!/bin/sh\n")
      scratch.write(home .. "/nvidia-smi", "#!/bin/sh\nprintf '" .. gpus .. "'\n")
      os.execute(("chmod +x %s/nvcc %s/nvidia-smi"):format(home, home))
      -- The settings of a make that runs this would be those of the one below, too.
      local pipe = assert(io.popen(("PATH=%s:$PATH env -u MAKEFLAGS make -n -f runtime/make/build.mk CONFIG=release " ..
        "BUILD=%s/b %s %s/b/release/obj/kernels/cuda/places/mark.cuda.o"):format(home, home, settings or "CUDA_ARCHS=",
        home)))
      local text = pipe:read("*a")
      pipe:close()
      local found = {}
      for code in text:gmatch(",code=(%S+)") do found[#found + 1] = code end
      return table.concat(found, " ")
    end
    assert.equal("sm_80 sm_90 compute_90", flags("9.0\\n8.0\\n9.0\\n"))
    assert.equal("sm_120 compute_120", flags("7.5\\n12.0\\n"))
    assert.equal("sm_90 compute_90", flags("N/A\\n"))
    assert.equal("sm_80 sm_90 sm_100 compute_100", flags("9.0\\n", "CUDA_ARCHS='100 80 90'"))
    scratch.clear()
  end)

  it("A1 say that there is no GPU", function()
    for _, command in ipairs({ "tests/gpu/run.sh", "tests/gpu/bench.sh", "tests/gpu/overlap.sh" }) do
      local status, text = run(command, "MOONSHARD_EMULATE_DEVICES=0")
      assert.equal(512, status)
      contains(text, "no GPU")
    end
  end)
end)
