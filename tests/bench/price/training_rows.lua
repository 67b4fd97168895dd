-- Published training speeds: reads the table, and says which rows a plan of this project can stand for.
--
-- A row is one run: its model, GPUs, sharding, batch, precision and tokens/s of a GPU (data/README.md). A plan stands
-- for it if FSDP, HSDP or tensor parallelism divide the model, the table names everything that the plan needs, and
-- kernels compute in bf16. Rows of one document on one kind of GPU, all compiled by torch.compile or none, form a
-- stack: they share hardware and software, and so the constants of a described cluster.

local training_rows = {}

---@class moonshard.bench.TrainingRow
---@field line integer of the file
---@field source string
---@field document string the source without its revision and row
---@field stack string document and GPU, and whether torch.compile compiled it
---@field model string
---@field gpu_type string
---@field layers integer
---@field dim integer
---@field heads integer
---@field kv_heads integer
---@field ffn integer
---@field vocab integer
---@field seq integer
---@field gpus integer
---@field per_node integer
---@field shard integer
---@field replicate integer
---@field tensor integer
---@field micro_batch integer
---@field grad_accum integer
---@field reduce_dtype "f32"|"bf16" of gradients between ranks
---@field gathers_each_input boolean tensor parallel products gather their inputs one by one
---@field recompute "none"|"full"|"op"|"layer"
---@field compiled boolean by torch.compile
---@field measured number tokens/s of a GPU
---@field inter_gbps number? of a node
---@field intra number? GB/s of a GPU
---@field label string
---@field outlier string? why the row is no evidence

-- Fields of a line of CSV: quoted ones may hold commas, and "" for a quote.
local function fields_of(line)
  local fields, at = {}, 1
  while at <= #line + 1 do
    if line:sub(at, at) == '"' then
      local text, stop = "", at
      repeat
        local close = line:find('"', stop + 1, true)
        if not close then error(("a quote is never closed: %s"):format(line)) end
        text = text .. line:sub(stop + 1, close - 1)
        stop = close + 1
        if line:sub(stop, stop) == '"' then text = text .. '"' end
      until line:sub(stop, stop) ~= '"'
      fields[#fields + 1], at = text, stop + 1
    else
      local comma = line:find(",", at, true) or #line + 1
      fields[#fields + 1], at = line:sub(at, comma - 1), comma + 1
    end
  end
  return fields
end

-- Every line as a table by column.
local function records_of(path)
  local file = assert(io.open(path))
  local names, records, number = nil, {}, 0
  for line in file:lines() do
    number = number + 1
    local fields = fields_of((line:gsub("\r$", "")))
    if not names then
      names = fields
    elseif line ~= "" then
      if #fields ~= #names then
        error(("%s:%d: %d fields, but the header names %d"):format(path, number, #fields, #names))
      end
      local record = { line = number }
      for i, name in ipairs(names) do record[name] = fields[i] end
      records[#records + 1] = record
    end
  end
  file:close()
  return records
end

-- Modalities' table names neither heads nor vocabulary: those of the project's example configurations. Its sizes in
-- billions count the embedding once.
local MODALITIES = { head_dim = 128, vocab = 50304 }

-- Runs that others of the same table show to be disturbed.
local OUTLIERS = {
  { "llm%-foundry", model = "MPT-1b", gpu = "A100.*40GB", gpus = 32, why = "45 % MFU, 56 % on 16 and 55 % on 64 GPUs" },
  { "llm%-foundry", model = "MPT-70b", gpu = "A100.*40GB", gpus = 64, why = "36 % MFU, 49 % on 128 GPUs" },
  { "scaling_leonardo", model = "13B", gpu = "A100", gpus = 8, why = "37 % MFU, 57 % on 16 GPUs" },
  { "scaling_mn5", model = "13B", gpu = "H100", gpus = 2048, why = "faster than at 1024" },
}

local function outlier_of(row)
  for _, known in ipairs(OUTLIERS) do
    if row.source:find(known[1]) and row.model:find(known.model, 1, true) and row.gpu_type:find(known.gpu)
        and row.gpus == known.gpus then
      return known.why
    end
  end
end

local RECOMPUTE = {
  [""] = "none", none = "none", full = "full", ["selective(op)"] = "op", ["selective(layer)"] = "layer",
}

-- Whose gradients are summed in f32, by document or precision: Composer's mixed precision "DEFAULT", and the defaults
-- of torchtitan and KempnerForge. Others sum bf16.
local REDUCED_IN_F32 = { "FSDP%-DEFAULT", "pytorch/torchtitan", "pytorch/ao", "KempnerForge" }

local function reduce_dtype_of(record)
  for _, pattern in ipairs(REDUCED_IN_F32) do
    if record.source:find(pattern) or record.precision:find(pattern) then return "f32" end
  end
  return "bf16"
end

-- Sizes along the dimensions of the mesh: "shard=8,replicate=2,tp=1,pp=1". Nil, and why, if a plan has no such mesh.
local function mesh_of(record)
  local size = {}
  for part in record.parallel:gmatch("[^,]+") do
    local name, value = part:match("^%s*([%w-]+)=(%d+)$")
    if not name and not part:find("SP$") then return nil, "parallelism of another kind: " .. part end
    if name then size[name] = tonumber(value) end
  end
  if (size.pp or 1) > 1 or size.vpp and size.vpp > 1 then return nil, "pipeline parallel" end
  if size.cp and size.cp > 1 then return nil, "context parallel outside FSDP" end
  if not (size.shard and size.replicate) then return nil, "its mesh is not FSDP's" end
  local ranks = size.shard * size.replicate * (size.tp or 1)
  if ranks ~= tonumber(record.gpus) then return nil, "its mesh does not have as many ranks as GPUs" end
  if record.parallel:find("replicate") and size.shard == 1 and ranks > 1 and size.replicate > 1 then
    return nil, "replicas with a distributed optimizer, not FSDP"
  end
  return size
end

local NEEDED = { "n_layers", "d_model", "seq", "gpus", "gpus_per_node", "micro_batch", "tokens_per_s_per_gpu" }

-- Why no plan can stand for a record; nil if one can.
local function refusal(record)
  if record.precision:lower():find("fp8") or record.precision:lower():find("float8") then return "fp8" end
  if record.source:find("vTrain") then return "tensor and pipeline parallel GPT without FSDP" end
  if not record.precision:find("bf16") then return "fp16 or mixed with other formats" end
  for _, name in ipairs(NEEDED) do
    if not tonumber(record[name]) then return "the source does not state " .. name end
  end
  if not RECOMPUTE[record.act_ckpt] then return "the part of recomputed blocks is not stated" end
  if record.notes:find("sharding strategy per size not given") and tonumber(record.n_layers) == 32 then
    return "the source does not state whether it is FSDP or HSDP"
  end
end

local function row_of(record, size)
  local function number(name) return tonumber(record[name]) end
  local modalities = record.source:find("Modalities", 1, true)
  local dim, heads = number("d_model"), number("n_heads")
  local row = {
    line = record.line, source = record.source, model = record.model, gpu_type = record.gpu_type,
    document = record.source:match("^(.-)%s*@") or record.source, layers = number("n_layers"), dim = dim,
    heads = heads or modalities and dim / MODALITIES.head_dim, vocab = number("vocab") or MODALITIES.vocab,
    ffn = number("d_ff") or 4 * dim, seq = number("seq"), gpus = number("gpus"), per_node = number("gpus_per_node"),
    shard = size.shard, replicate = size.replicate, tensor = size.tp or 1, micro_batch = number("micro_batch"),
    grad_accum = number("grad_accum") or 1, reduce_dtype = reduce_dtype_of(record),
    gathers_each_input = record.source:find("KempnerForge", 1, true) ~= nil, recompute = RECOMPUTE[record.act_ckpt],
    compiled = record.compile == "yes", measured = number("tokens_per_s_per_gpu"), intra = number("intra_bw_GBps"),
    inter_gbps = number("inter_bw_Gbps"), gpt = modalities ~= nil or record.model:find("^MPT") ~= nil,
  }
  row.kv_heads = number("n_kv") or row.heads
  row.stack = ("%s, %s%s"):format(row.document, row.gpu_type, row.compiled and ", compiled" or "")
  row.outlier = outlier_of(row)
  row.label = ("%s x%d shard %d%s, %d x %d x %d%s"):format(row.model, row.gpus, row.shard,
    row.tensor > 1 and " tp " .. row.tensor or "", row.grad_accum, row.micro_batch, row.seq,
    row.recompute ~= "none" and " " .. row.recompute or "")
  return row
end

---Rows that a plan can stand for, in the file's order, and how many others there are by reason.
---@param path string
---@return moonshard.bench.TrainingRow[]
---@return { why: string, rows: integer }[] refused most frequent reason first
function training_rows.read(path)
  local rows, counts, refused = {}, {}, {}
  for _, record in ipairs(records_of(path)) do
    local why = refusal(record)
    local size
    if not why then size, why = mesh_of(record) end
    if size and not tonumber(record.n_heads) and not record.source:find("Modalities", 1, true) then
      why = "the source does not state n_heads"
    end
    if why then
      counts[why] = (counts[why] or 0) + 1
    else
      rows[#rows + 1] = row_of(record, size)
    end
  end
  for why, n in pairs(counts) do refused[#refused + 1] = { why = why, rows = n } end
  table.sort(refused, function(a, b)
    if a.rows ~= b.rows then return a.rows > b.rows end
    return a.why < b.why
  end)
  return rows, refused
end

return training_rows
