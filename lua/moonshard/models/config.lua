-- The config of a model: the options that its layers were made with, which `model.config` shows.

local sealed = require("moonshard.base.sealed")

local Config = { __name = "a model's config" }

sealed.class(Config, {
  what = Config.__name, answers = {},
  otherwise = "layers are made with it: give it to the function of ms.models that makes the model",
})

---@param config table options with defaults; the model keeps it
---@return table config the same table; assigning to its fields is an error from here on
return function(config) return sealed.seal(setmetatable(config, Config)) end
