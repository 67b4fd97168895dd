-- Data for recipes: text by bytes, random numbers, and the sampler that divides a dataset over the ranks.
return {
  text = require("moonshard.data.text"),
  random = require("moonshard.data.random"),
  sampler = require("moonshard.data.sampler"),
}
