-- Data for recipes: text by bytes, token files, random numbers, and the sampler that divides a dataset over the ranks.
return require("moonshard.unknown_name").strict("ms.data", {
  text = require("moonshard.data.text"),
  tokens = require("moonshard.data.tokens"),
  random = require("moonshard.data.random"),
  sampler = require("moonshard.data.sampler"),
})
