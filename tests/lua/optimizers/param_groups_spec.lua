-- The groups of an optimizer: what they replace, what is refused, and how schedules and ms.set_rules go with them.
-- Their numbers are compared with those of PyTorch in updates_spec.lua.

local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local ms = require("moonshard")
local param_groups = require("moonshard.shard.param_groups")
local re = ms.re
local scratch = require("lua.support.scratch")

local function groups(optimizer, ...) return (optimizer:param_groups { ... }) end

local function refused(message, code, call)
  local ok, raised = pcall(call)
  assert.is_false(ok)
  assert.equal(code, raised.status)
  has(raised.message, message)
end

local function of_adamw(group, lr)
  return function()
    return groups(ms.optim.adamw { lr = lr or 1e-2, groups = { { re"w", group } } }, "w")
  end
end

describe("groups of an optimizer", function()
  it("S13 replace its rate, weight decay, betas and eps", function()
    local found = groups(ms.optim.adamw {
      lr = ms.schedule.cosine { peak = 1e-2, total = 10, warmup = 2 }, weight_decay = 0.1,
      groups = {
        { re"bias", { weight_decay = 0, lr_scale = 2 } },
        { "embed", { lr = 4e-2, betas = { 0.8, 0.9 }, eps = 1e-6 } },
      },
    }, "a.bias", "embed.w", "w")
    assert.same({ lr_scale = 2, weight_decay = 0 }, found["a.bias"])
    assert.same({ lr_scale = 4, weight_decay = 0.1, betas = { 0.8, 0.9 }, eps = 1e-6 }, found["embed.w"])
    assert.same({ lr_scale = 1, weight_decay = 0.1 }, found.w)
  end)

  it("S13 replace the momentum of SGD and Muon, and Lion's betas", function()
    local momentum = { { "w", { momentum = 0.5 } }, { "b", { momentum = 0, weight_decay = 0 } } }
    for _, kind in ipairs { "sgd", "muon" } do
      local found = groups(ms.optim[kind] { lr = 1, momentum = 0.9, weight_decay = 0.1, groups = momentum }, "w", "b")
      assert.same({ w = { lr_scale = 1, weight_decay = 0.1, momentum = 0.5 },
        b = { lr_scale = 1, weight_decay = 0, momentum = 0 } }, found)
      assert.equal("lr x 1, weight decay 0.1, momentum 0.5", param_groups.text(found.w))
    end
    local lion = groups(ms.optim.lion { lr = 1, groups = { { "w", { betas = { 0.8, 0.9 } } } } }, "w").w
    assert.equal("lr x 1, weight decay 0, betas 0.8, 0.9", param_groups.text(lion))
  end)

  it("S13 have the rate of every schedule's peak as their base", function()
    for _, lr in ipairs { 2e-2, ms.schedule.constant { peak = 2e-2 }, ms.schedule.linear { peak = 2e-2, total = 5 },
      ms.schedule.wsd { peak = 2e-2, total = 5, decay = 2 } } do
      assert.equal(0.5, of_adamw({ lr = 1e-2 }, lr)().w.lr_scale)
    end
    refused("lr | function | lr_scale", "MS_EINVAL", of_adamw({ lr = 1e-2 }, function() return 1 end))
    refused("lr | 0 | lr_scale", "MS_EINVAL", of_adamw({ lr = 1e-2 }, 0))
    refused("lr 1 | 1e-310 | lr_scale", "MS_EINVAL", of_adamw({ lr = 1 }, 1e-310))
  end)

  it("S13 refuse what is out of range, or not the optimizer's", function()
    refused("groups | /w/ | lr | lr_scale", "MS_EINVAL", of_adamw { lr = 1, lr_scale = 1 })
    refused("groups | /w/ | betas | 0.9", "MS_EINVAL", of_adamw { betas = 0.9 })
    refused("groups | /w/ | betas", "MS_EINVAL", of_adamw { betas = { 0.9, {} } })
    refused("groups | /w/ | betas[2] | 1", "MS_EINVAL", of_adamw { betas = { 0.9, 1 } })
    refused("groups | /w/ | eps | 0", "MS_EINVAL", of_adamw { eps = 0 })
    refused("groups | /w/ | eps | f32 | 1e-60", "MS_EINVAL", of_adamw { eps = 1e-60 })
    refused("ms.optim.adam | eps | f32 | 1e-60", "MS_EINVAL", function() ms.optim.adam { lr = 1, eps = 1e-60 } end)
    refused("ms.optim.sgd | dampening | finite", "MS_EINVAL", function()
      ms.optim.sgd { lr = 1, momentum = 0.9, dampening = math.huge }
    end)
    refused("groups | bias | list", "MS_ERULE", function()
      groups(ms.optim.adamw { lr = 1, groups = { bias = { lr = 1 } } }, "w")
    end)
    refused("groups | item 1 | nil | item 2", "MS_EINVAL", function()
      groups(ms.optim.adamw { lr = 1, groups = { nil, { "w", { lr = 1 } } } }, "w")
    end)
    refused("groups | /w/ | weight_decay | 0", "MS_EINVAL", of_adamw { weight_decay = -1 })
    refused("groups | /w/ | betas", "MS_ENAME", function()
      return groups(ms.optim.sgd { lr = 1, groups = { { re"w", { betas = { 0.9, 0.99 } } } } }, "w")
    end)
    local function of_sgd(momentum, group)
      return function() groups(ms.optim.sgd { lr = 1, momentum = momentum, groups = { { re"w", group } } }, "w") end
    end
    refused("groups | /w/ | momentum | 0 | 1 | 1", "MS_EINVAL", of_sgd(0.9, { momentum = 1 }))
    refused("groups | /w/ | momentum | number | nan", "MS_EINVAL", of_sgd(0.9, { momentum = 0 / 0 }))
    refused("groups | /w/ | momentum | 0.5 | ms.optim.sgd | above 0", "MS_EINVAL", of_sgd(0, { momentum = 0.5 }))
    refused("groups | /w/ | momentum", "MS_ENAME", of_adamw { momentum = 0.5 })
    refused("groups | /v/", "MS_ERULE", function()
      return groups(ms.optim.sgd { lr = 1, groups = { { re"v", { lr = 1 } } } }, "w")
    end)
  end)
end)

describe("moments", function()
  it("S13 of Lion are refused in 8 bits, and its eps", function()
    refused("ms.optim.lion | moments | f32 | bf16 | i8", "MS_EDTYPE", function()
      ms.optim.lion { lr = 1e-3, moments = "i8" }
    end)
    refused("ms.optim.lion | eps", "MS_ENAME", function() ms.optim.lion { lr = 1e-3, eps = 1e-8 } end)
    assert.equal("bf16", ms.optim.lion({ lr = 1e-3, moments = "bf16" }):moments_of { fqn = "w", numel = 1 })
  end)
end)

describe("a group's own rate", function()
  it("S13 R4 stays when ms.set_rules changes the optimizer's", function()
    ms.world()
    local model = ms.nn.linear(2, 2)
    ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", { 1 }, { "shard" }) })
    local train = ms.trainer { model = model, loss = ms.loss.mse,
      optimizer = ms.optim.sgd { lr = 0.5, groups = { { "bias", { lr = 0.25 } } } } }
    local batch = { tokens = ms.ones { 1, 2 }, targets = ms.zeros { 1, 2 } }
    local function moved()
      local before = { weight = model:parameter("weight"):tolist(), bias = model:parameter("bias"):tolist() }
      train:step(batch)
      local bias = model:parameter("bias"):tolist()
      return bias[1] - before.bias[1], train:gradient("bias"):tolist()[1]
    end
    local change, gradient = moved()
    assert.near(-0.25 * gradient, change, 1e-6)
    train:set_rules { lr = 0.125 }
    change, gradient = moved()
    assert.near(-0.25 * gradient, change, 1e-6)
  end)
end)

-- As torch.optim.SGD: a buffer is the first gradient that meets a momentum, and is kept while the momentum is 0.
describe("dampened momentum that begins later", function()
  local LR, DAMPENING = 0.05, 0.5
  teardown(scratch.clear)

  local function of_weight(momentum) return { { "0.weight", { momentum = momentum } } } end

  local function trainer(momentum, layout)
    local model = ms.nn.sequential { ms.nn.linear(4, 3) }
    ms.fully_shard(model, { seed = 1, layout = layout })
    return ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd {
      lr = LR, momentum = 0.9, dampening = DAMPENING, groups = momentum ~= 0.9 and of_weight(momentum) or nil } }
  end

  -- Takes a step, and returns by how much it differs from PyTorch's; buffers: by parameter.
  local function step(train, number, momentum, buffers)
    local before, far = {}, 0
    for name in train.model:named_parameters() do before[name] = train:parameter(name) end
    train:step { inputs = ms.randn { 5, 4, seed = number }, targets = ms.randn { 5, 3, seed = 90 + number } }
    for name, old in pairs(before) do
      local m, g = name == "0.weight" and momentum or 0.9, train:gradient(name)
      if m > 0 then buffers[name] = buffers[name] and buffers[name] * m + g * (1 - DAMPENING) or g end
      local expected = old - (m > 0 and buffers[name] or g) * LR
      far = math.max(far, (train:parameter(name) - expected):abs():max():item())
    end
    return far
  end

  -- resumes: after which step a fresh trainer goes on from a checkpoint.
  local function differs(momenta, resumes, layout)
    local train, buffers, far = trainer(momenta[1], layout), {}, 0
    for number, momentum in ipairs(momenta) do
      if number - 1 == resumes then
        local folder = scratch.path()
        ms.checkpoint.save(train, folder)
        train = trainer(momentum, layout)
        ms.checkpoint.load(train, folder)
      elseif momentum ~= momenta[number - 1] then
        train:set_rules { groups = of_weight(momentum) }
      end
      far = math.max(far, step(train, number, momentum, buffers))
    end
    return far
  end

  local MOMENTA = { 0, 0, 0.9, 0.9, 0, 0, 0.9, 0.8 }

  it("S13 R4 begins as the gradient, and goes on after steps without", function()
    assert.is_true(differs(MOMENTA) < 1e-6)
    assert.is_true(differs { 0.9, 0, 0, 0.9, 0.9 } < 1e-6)
  end)

  it("S13 is resumed, also by a recipe that begins or ends it there", function()
    for _, after in ipairs(breadth.few { 3, 4, 6, 1, 2 }) do
      assert.is_true(differs(MOMENTA, after) < 1e-6, "after step " .. after)
    end
    -- Parameters of a segment then differ in where their momentum began.
    assert.is_true(differs({ 0, 0, 0.9, 0.9 }, 2, "ragged") < 1e-6)
  end)

  it("S13 begins where a load says, under rules that a later step has begun it with", function()
    local train, buffers, folder = trainer(0), {}, scratch.path()
    for number = 1, 2 do step(train, number, 0, buffers) end
    ms.checkpoint.save(train, folder)
    local kept = {}
    for name, buffer in pairs(buffers) do kept[name] = buffer end
    step(train, 3, 0, buffers)
    train:set_rules { groups = of_weight(0.9) }
    for number = 4, 5 do assert.is_true(step(train, number, 0.9, buffers) < 1e-6) end
    ms.checkpoint.load(train, folder)
    for number = 3, 5 do assert.is_true(step(train, number, 0.9, kept) < 1e-6, number) end
    train:set_rules { lr = LR }
    assert.is_true(step(train, 6, 0.9, kept) < 1e-6)
  end)
end)
