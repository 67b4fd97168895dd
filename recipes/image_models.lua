-- Models of small images as users write them, with group norm in place of batch norm: a residual network of
-- convolutions (He et al. 2016) classifies, and a U-Net (Ronneberger et al. 2015) gives an image for an image.
-- images.lua trains them and a vision transformer, ms.models.vit.

local ms = require "moonshard"
local nn, ops = ms.nn, ms.ops

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

-- images [N,C,size,size] -> logits [N,classes]
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

-- ---- U-Net ------------------------------------------------------------------------------------------------------

-- Two convolutions, each after a norm; the block's input is added, as in diffusion models.
local UNetBlock = ms.module "UNetBlock"

function UNetBlock:init(inputs, outputs, groups)
  self.norm1 = nn.group_norm(groups, inputs)
  self.conv1 = nn.conv2d(inputs, outputs, 3, { padding = 1 })
  self.norm2 = nn.group_norm(groups, outputs)
  self.conv2 = nn.conv2d(outputs, outputs, 3, { padding = 1 })
  self.short = inputs ~= outputs and nn.conv2d(inputs, outputs, 1) or nil
end

function UNetBlock:forward(x)
  local y = self.conv1(self.norm1(x):silu())
  y = self.conv2(self.norm2(y):silu())
  return y + (self.short and self.short(x) or x)
end

local UNet = ms.module "UNet"

-- Each level has half the pixels of the one before, and twice the channels.
function UNet:init(o)
  self.stem = nn.conv2d(o.channels, o.dim, 3, { padding = 1 })
  self.down, self.shrink, self.up, self.grow = {}, {}, {}, {}
  for i = 1, o.layers do
    local width = o.dim * 2 ^ (i - 1)
    self.down[i] = UNetBlock(width, width, o.groups)
    self.shrink[i] = nn.conv2d(width, 2 * width, 3, { stride = 2, padding = 1 })
    self.grow[i] = nn.conv2d(2 * width, width, 3, { padding = 1 })
    self.up[i] = UNetBlock(2 * width, width, o.groups)
  end
  local width = o.dim * 2 ^ o.layers
  self.middle = UNetBlock(width, width, o.groups)
  self.norm = nn.group_norm(o.groups, o.dim)
  self.head = nn.conv2d(o.dim, o.channels, 3, { padding = 1 })
end

-- images [N,C,size,size] -> images of this shape; 2^layers divides size
function UNet:forward(images)
  local x, kept = self.stem(images), {}
  for i, block in ipairs(self.down) do
    kept[i] = block(x)
    x = self.shrink[i](kept[i])
  end
  x = self.middle(x)
  for i = #kept, 1, -1 do
    x = self.grow[i](x:interpolate { scale_factor = 2 })
    x = self.up[i](ops.cat({ kept[i], x }, 1))
  end
  return self.head(self.norm(x):silu())
end

return { resnet = ResNet, unet = UNet }
