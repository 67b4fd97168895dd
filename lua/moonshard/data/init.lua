-- Data for recipes: text by bytes, token files, conversations, pairs of answers, mixes of these, masked tokens,
-- random numbers, and the sampler that divides a dataset over the ranks.
---@class moonshard.data
---@field text fun(o: moonshard.TextOptions): moonshard.TextData
---@field tokens fun(o: moonshard.TokenOptions): moonshard.TokenData
---@field chat fun(o: moonshard.ChatOptions): moonshard.ChatData
---@field chat_prompt fun(messages: string|moonshard.ChatMessage[], o: moonshard.ChatPromptOptions?): integer[]
---@field preferences fun(o: moonshard.PreferenceOptions): moonshard.PreferenceData
---@field mix fun(o: moonshard.MixOptions): moonshard.MixData
---@field masked fun(o: moonshard.MaskedOptions): moonshard.MaskedData
---@field random fun(o: moonshard.RandomOptions): moonshard.RandomData
---@field sampler fun(o: moonshard.SamplerOptions): moonshard.Sampler
return require("moonshard.base.checks.strict").fields("ms.data", {
  text = require("moonshard.data.text"),
  tokens = require("moonshard.data.tokens"),
  chat = require("moonshard.data.conversations.chat"),
  chat_prompt = require("moonshard.data.conversations.message_tokens").prompt,
  preferences = require("moonshard.data.conversations.preferences"),
  mix = require("moonshard.data.mix"),
  masked = require("moonshard.data.masked"),
  random = require("moonshard.data.random"),
  sampler = require("moonshard.data.sampler"),
})
