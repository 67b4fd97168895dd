-- Attention within a sliding window, trained by the op, which skips what a window hides and stores no scores, and by
-- the ops of ms.nn.masked_attention that store them, in turns.
--
--   moonshard run tests/bench/windows.lua length=2048 attended=256 dtype=f32
--
-- Prints one JSON line: the result of pairs.lua, with the names op and composed, and the bytes of each one's arenas.

local ffi = require("ffi")
local ms = require("moonshard")
local compare = dofile("tests/bench/pairs.lua").compare

local cfg = ms.args {
  length = 2048, attended = 256, softcap = 0, heads = 6, head_dim = 64, dtype = "f32", pairs = 5, window = 1,
  warmup = 1,
}

local dim = cfg.heads * cfg.head_dim
-- A mask that hides nothing is one that the op has not.
local all = ms.tensor({ 1 }, { dtype = "u8" }):reshape(1, 1, 1, 1)

local function trainer(mask)
  local function linear() return ms.nn.linear { dim, dim, bias = false } end
  local model = ms.module {
    wq = linear(), wk = linear(), wv = linear(),
    forward = function(self, x)
      local function heads(y) return y:reshape(x.shape[1], x.shape[2], cfg.heads, cfg.head_dim) end
      return ms.nn.masked_attention(heads(self.wq(x)), heads(self.wk(x)), heads(self.wv(x)),
        { window = cfg.attended, softcap = cfg.softcap > 0 and cfg.softcap or nil, mask = mask })
    end,
  }
  ms.fully_shard(model, { mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32" } })
  return ms.trainer {
    model = model, optimizer = ms.optim.sgd { lr = 1e-3 },
    forward = function(net, batch)
      local y = net(batch.inputs):cast("f32")
      return (y * y):mean()
    end,
  }
end

local count = cfg.length * dim
local values = ffi.new("float[?]", count)
for i = 0, count - 1 do values[i] = (i * 7919 % 1000) / 500 - 1 end
local batch = { inputs = { data = values, dtype = "f32", shape = { 1, cfg.length, dim } } }

local train = { op = trainer(nil), composed = trainer(all) }
local peak = {}
for name, each in pairs(train) do peak[name] = each:compile(batch):summary().peak_bytes end
local result = compare({ "op", "composed" }, train, batch, cfg)
for name in pairs(train) do result[name .. "_peak_bytes"] = peak[name] end
print(require("moonshard.base.text.json").encode(result))
