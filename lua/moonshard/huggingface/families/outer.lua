-- Models that also read images, around a decoder whose config is text_config: which tensors are the decoder's, and
-- which other parts a folder has. The decoder is of a family of its own. What all of them share is in
-- huggingface/folder/outer.lua.

---@class moonshard.OuterFamily
---@field architecture string
---@field base string? the class without the head; default: by the name of the architecture
---@field text string model_type of text_config, where that does not say it
---@field nestings moonshard.Nesting[] how its folders name tensors; adapters take the first
---@field parts string[] what the names of other parts' tensors begin with, after "model." or not
---@field fields string names of config.json's fields that are of other parts, or say where they meet the text

---@class moonshard.Nesting
---@field prefix string of the decoder's tensors, in place of its own
---@field outside string? what the names of its head begin with

-- Before version 4.52 of the reference library the decoder had its head inside, as it has today in Llama 4. Most files
-- have these names still.
local HEAD_INSIDE = { prefix = "language_model.model.", outside = "language_model." }
local HEAD_OUTSIDE = { prefix = "model.language_model." }

local VISION = { "vision_tower.", "multi_modal_projector." }

---@type table<string, moonshard.OuterFamily>
local families = {
  gemma3 = {
    architecture = "Gemma3ForConditionalGeneration", text = "gemma3_text", nestings = { HEAD_OUTSIDE, HEAD_INSIDE },
    parts = VISION,
    fields = "boi_token_index eoi_token_index image_token_index mm_tokens_per_image",
  },
  mistral3 = {
    architecture = "Mistral3ForConditionalGeneration", text = "mistral",
    nestings = { HEAD_OUTSIDE, HEAD_INSIDE }, parts = VISION,
    fields = [[
      image_token_index multimodal_projector_bias projector_hidden_act spatial_merge_size vision_feature_layer
    ]],
  },
  llama4 = {
    architecture = "Llama4ForConditionalGeneration", text = "llama4_text", nestings = { HEAD_INSIDE },
    parts = { "vision_model.", "multi_modal_projector." }, fields = "boi_token_index eoi_token_index image_token_index",
  },
  llava = {
    architecture = "LlavaForConditionalGeneration", text = "llama",
    nestings = { HEAD_OUTSIDE, HEAD_INSIDE }, parts = VISION,
    fields = [[
      ignore_index image_seq_length image_token_index multimodal_projector_bias projector_hidden_act
      vision_feature_layer vision_feature_select_strategy
    ]],
  },
  internvl = {
    architecture = "InternVLForConditionalGeneration", text = "qwen2",
    nestings = { HEAD_OUTSIDE, HEAD_INSIDE }, parts = VISION,
    fields = [[
      downsample_ratio image_seq_length projector_hidden_act vision_feature_layer
      vision_feature_select_strategy
    ]],
  },
  idefics3 = {
    architecture = "Idefics3ForConditionalGeneration", text = "llama", nestings = { { prefix = "model.text_model." } },
    parts = { "vision_model.", "connector." }, fields = "_pad_token_id scale_factor",
  },
  smolvlm = {
    architecture = "SmolVLMForConditionalGeneration", text = "llama", nestings = { { prefix = "model.text_model." } },
    parts = { "vision_model.", "connector." }, fields = "_pad_token_id scale_factor",
  },
}

-- LLaVA's later versions divide large images, and mark their rows.
for model_type, architecture in pairs({ llava_next = "LlavaNextForConditionalGeneration",
  llava_onevision = "LlavaOnevisionForConditionalGeneration" }) do
  families[model_type] = {
    architecture = architecture, text = model_type == "llava_next" and "llama" or "qwen2",
    nestings = { HEAD_OUTSIDE, HEAD_INSIDE }, parts = { "vision_tower.", "multi_modal_projector.", "image_newline" },
    fields = families.llava.fields .. " image_grid_pinpoints use_image_newline_parameter video_token_index "
      .. "vision_aspect_ratio",
  }
end

return families
