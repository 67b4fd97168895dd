-- Two classifiers of small images as users write them: a vision transformer (Dosovitskiy et al. 2021) and a residual
-- network of convolutions (He et al. 2016), with group norm in place of batch norm. images.lua trains them.
--
-- Both map images [N,C,size,size] to logits [N,classes].

local ms = require "moonshard"
local nn, ops = ms.nn, ms.ops

-- ---- ViT --------------------------------------------------------------------------------------------------------

local ViTBlock = ms.module "ViTBlock"

function ViTBlock:init(dim, heads)
  self.norm1, self.norm2 = nn.layer_norm(dim), nn.layer_norm(dim)
  self.q, self.k, self.v, self.out = nn.linear(dim, dim), nn.linear(dim, dim), nn.linear(dim, dim), nn.linear(dim, dim)
  self.fc1, self.fc2 = nn.linear(dim, 4 * dim), nn.linear(4 * dim, dim)
  self._heads = heads
end

function ViTBlock:attend(x)                    -- x [N,T,dim]
  local images, length, dim = unpack(x.shape)
  local function split(y) return y:reshape(images, length, self._heads, dim / self._heads) end
  local y = ops.attention(split(self.q(x)), split(self.k(x)), split(self.v(x)), { causal = false })
  return self.out(y:reshape(images, length, dim))
end

function ViTBlock:forward(x)
  x = x + self:attend(self.norm1(x))
  return x + self.fc2(self.fc1(self.norm2(x)):gelu())
end

local ViT = ms.module "ViT"

function ViT:init(o)
  local patches = (o.size / o.patch) ^ 2
  self.patches = nn.conv2d(o.channels, o.dim, o.patch, { stride = o.patch })
  self.positions = ms.parameter { patches, o.dim, init = ms.init.normal(0, 0.02) }
  self.layers = {}
  for i = 1, o.layers do self.layers[i] = ViTBlock(o.dim, o.heads) end
  self.norm = nn.layer_norm(o.dim)
  self.head = nn.linear(o.dim, o.classes)
end

function ViT:forward(images)
  local x = self.patches(images):flatten(2):transpose(1, 2) + self.positions -- [N,T,dim]
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.head(self.norm(x:mean(1)))
end

-- ---- ResNet -----------------------------------------------------------------------------------------------------

local ResidualBlock = ms.module "ResidualBlock"

function ResidualBlock:init(inputs, outputs, stride, groups)
  self.conv1 = nn.conv2d(inputs, outputs, 3, { stride = stride, padding = 1, bias = false })
  self.norm1 = nn.group_norm(groups, outputs)
  self.conv2 = nn.conv2d(outputs, outputs, 3, { padding = 1, bias = false })
  self.norm2 = nn.group_norm(groups, outputs)
  if stride ~= 1 or inputs ~= outputs then
    self.short = nn.conv2d(inputs, outputs, 1, { stride = stride, bias = false })
  end
end

function ResidualBlock:forward(x)
  local y = self.norm2(self.conv2(self.norm1(self.conv1(x)):relu()))
  return (y + (self.short and self.short(x) or x)):relu()
end

local ResNet = ms.module "ResNet"

function ResNet:init(o)
  local width = o.dim
  self.stem = nn.conv2d(o.channels, width, 3, { padding = 1, bias = false })
  self.norm = nn.group_norm(o.groups, width)
  self.layers = {}
  for i = 1, o.layers do
    local outputs = i == 1 and width or 2 * width
    self.layers[i] = ResidualBlock(width, outputs, i == 1 and 1 or 2, o.groups)
    width = outputs
  end
  self.head = nn.linear(width, o.classes)
end

function ResNet:forward(images)
  local x = self.norm(self.stem(images)):relu():max_pool2d(3, { stride = 2, padding = 1 })
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.head(x:mean({ 2, 3 }))
end

return { vit = ViT, resnet = ResNet }
