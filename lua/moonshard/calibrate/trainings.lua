-- The trainings that `moonshard calibrate` measures: few and small, so that all of them take two minutes, and spread
-- over the sizes of kernels that models have.
--
-- Every model has two layers and a root, so a kernel finds the caches as the layers before it left them.

local calibration_trainings = {}

local HEAD_DIM = 64

-- By device: the vocabulary and the sizes (dim, tokens of a row, rows). A GPU computes what keeps a processor busy in
-- less time than it takes to start a kernel, so its sizes are those of real models; the smallest one measures starts.
local DEVICES = {
  cpu = {
    vocab = 256, sizes = {
      { 64, 64, 2 }, { 128, 64, 8 }, { 128, 256, 4 }, { 256, 128, 2 }, { 256, 128, 8 }, { 384, 256, 2 },
      { 512, 128, 4 }, { 512, 512, 1 }, { 768, 128, 2 },
    },
  },
  cuda = {
    vocab = 16384, sizes = {
      { 128, 128, 2 }, { 512, 512, 8 }, { 512, 1024, 32 }, { 768, 256, 8 }, { 768, 1024, 24 }, { 1024, 2048, 4 },
      { 1536, 1024, 8 }, { 2048, 4096, 2 }, { 3072, 1024, 4 },
    },
  },
}
-- For --quick, on any device: enough to see that calibration works. Every third size is of replicas, whose sums nothing
-- else measures.
local QUICK = { vocab = 256, sizes = { { 64, 64, 2 }, { 128, 64, 4 }, { 128, 64, 2 } } }

-- Between two and four times dim, in steps of 64, as the published Llama models have.
local function ffn_of(dim) return 64 * math.floor(dim * 8 / 3 / 64 + 0.5) end

local function training(model, dtype, size, more)
  local dim = size[1]
  local t = {
    model = model, layers = 2, dim = dim, heads = math.max(2, dim / HEAD_DIM), ffn = ffn_of(dim), seq = size[2],
    batch = size[3], dtype = dtype, warmup = 2, steps = 3,
  }
  for key, value in pairs(more) do t[key] = value end
  return t
end

local FSDP, TENSOR = { "replicate", "shard" }, { "replicate", "shard", "tensor" }

---The trainings on a number of ranks.
---@param ranks integer
---@param o { dtypes: string[], device: string, quick: boolean? }
---@return moonshard.CalibrationTraining[]
function calibration_trainings.of(ranks, o)
  local list, by = {}, o.quick and QUICK or DEVICES[o.device]
  local sizes = by.sizes
  local function add(...)
    local t = training(...)
    t.device, t.vocab = o.device, by.vocab
    list[#list + 1] = t
  end
  for _, dtype in ipairs(o.dtypes) do
    for i, size in ipairs(sizes) do
      for _, model in ipairs({ "gpt", "llama" }) do
        local replicates = ranks > 1 and i % 3 == 0
        add(model, dtype, size, { mesh = (replicates and "%dx1" or "1x%d"):format(ranks), names = FSDP })
      end
    end
    if ranks % 2 == 0 and not o.quick then
      for _, sequence_parallel in ipairs({ false, true }) do
        for _, size in ipairs({ sizes[3], sizes[5] }) do
          add("llama", dtype, size, { mesh = ("1x%dx2"):format(ranks / 2), names = TENSOR,
            sequence_parallel = sequence_parallel })
        end
      end
    end
  end
  return list
end

return calibration_trainings
