-- A vision transformer (Dosovitskiy et al. 2021) that classifies images: square patches, a token of the class before
-- them, learned positions, pre-norm blocks, and a head that reads the token of the class.

local encoder = require("moonshard.models.encoder")
local errors = require("moonshard.base.error")
local model_config = require("moonshard.models.config")
local module = require("moonshard.nn.module")
local nn = require("moonshard.nn")
local ops = require("moonshard.tensor.ops")
local parameter = require("moonshard.tensor.parameter")

local ViT = module.define("ViT")
ViT.family = "vit"

function ViT:init(config)
  self.config = model_config.new(config)
  local init, patches = encoder.initializer(config), (config.size / config.patch) ^ 2
  self.patches = nn.conv2d(config.channels, config.dim, config.patch, {
    stride = config.patch, init = init,
  })
  self.class_token = parameter.new({ 1, 1, config.dim, init = init })
  self.positions = parameter.new({ 1, patches + 1, config.dim, init = init })
  self.dropout = nn.dropout(config.dropout)
  self.layers = encoder.blocks(config, "before")
  self.norm = nn.layer_norm({ config.dim, eps = config.eps })
  self.head = nn.linear({ config.dim, config.classes, init = init })
end

-- images [N,channels,size,size] -> logits [N,classes]
function ViT:forward(images)
  local config, shape = self.config, images.shape
  if #shape ~= 4 or shape[2] ~= config.channels or shape[3] ~= config.size or shape[4] ~= config.size then
    errors.raise("MS_ESHAPE", "vit: images must be [N,%d,%d,%d], not [%s]: draw them in this size, or create the model "
      .. "with theirs", config.channels, config.size, config.size, table.concat(shape, ","))
  end
  local x = self.patches(images):flatten(2):transpose(1, 2) -- [N,T,dim]
  x = ops.cat({ self.class_token:expand(shape[1], 1, config.dim), x }, 1)
  x = self.dropout(x + self.positions)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.head(self.norm(x:slice(1, 0, 1):reshape(shape[1], config.dim)))
end

function ViT:describe()
  local config = self.config
  return ("%d layers, dim %d, %d heads, %dx%d images in patches of %d, %d classes"):format(config.layers, config.dim,
    config.heads, config.size, config.size, config.patch, config.classes)
end

---@class moonshard.ViTOptions: moonshard.EncoderOptions
---@field size integer height and width of the images
---@field patch integer height and width of a patch; divides size
---@field classes integer
---@field channels? integer default 3
---@field qkv_bias? boolean default true

---A vision transformer. Its forward maps images [N, channels, size, size] to logits [N, classes].
---@param given moonshard.ViTOptions
---@return moonshard.Module
return function(given)
  local config = encoder.read("ms.models.vit", given, {
    size = { "positive", required = true },
    patch = { "positive", required = true },
    classes = { "positive", required = true },
    channels = { "positive", default = 3 },
    qkv_bias = { "boolean", default = true },
  })
  if config.size % config.patch ~= 0 then
    errors.raise("MS_ESHAPE", "ms.models.vit: size %d must be a multiple of patch %d", config.size, config.patch)
  end
  return ViT(config)
end
