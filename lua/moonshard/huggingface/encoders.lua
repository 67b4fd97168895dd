-- The families of encoders that Hugging Face's library and we have, one row each: BERT as a masked language model, and
-- vision transformers that classify images. Defaults are those of the config classes.

local encoder = require("moonshard.huggingface.encoder")
local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")

---@type table<string, moonshard.EncoderFamily>
local families = {}

-- ---- BERT -------------------------------------------------------------------------------------------------------

families.bert = {
  architecture = "BertForMaskedLM", also = { BertForPreTraining = true }, prefix = "bert.",
  head = "cls.predictions.decoder.weight",
  -- What the masked language model does not read: positions that old versions stored, the pooler, and the head of the
  -- other task of pre-training.
  buffers = { "^embeddings%.position_ids$", "^pooler%.", "^cls%.seq_relationship%." },
  renamed = { [".LayerNorm.weight"] = ".LayerNorm.gamma", [".LayerNorm.bias"] = ".LayerNorm.beta" },
  known = {
    vocab_size = { "size", 30522 }, max_position_embeddings = { "size", 512 }, type_vocab_size = { "size", 2 },
    pad_token_id = { "index|none", 0 },
    tie_word_embeddings = { only = true, why = "a head with weights of its own is not built for BERT" },
    position_embedding_type = { only = "absolute", why = "positions relative to one another are not built" },
  },
  names = {
    ["attn.wq"] = "attention.self.query", ["attn.wk"] = "attention.self.key", ["attn.wv"] = "attention.self.value",
    ["attn.wo"] = "attention.output.dense", norm1 = "attention.output.LayerNorm", ["mlp.fc1"] = "intermediate.dense",
    ["mlp.fc2"] = "output.dense", norm2 = "output.LayerNorm",
  },
  options = function(path, values, o)
    if values.pad_token_id and values.pad_token_id >= values.vocab_size then
      errors.invalid("%s: pad_token_id %d must be a token, below vocab_size %d: correct it, or null for none", path,
        values.pad_token_id, values.vocab_size)
    end
    o.vocab, o.seq, o.types = values.vocab_size, values.max_position_embeddings, values.type_vocab_size
    o.padding = values.pad_token_id or nil
  end,
  config = function(o, config)
    config.vocab_size, config.max_position_embeddings, config.type_vocab_size = o.vocab, o.seq, o.types
    config.pad_token_id, config.tie_word_embeddings = o.padding or json.null, true
  end,
  around = function(o)
    local dim, outside = { o.dim }, { outside = true }
    local norm, norm_bias = encoder.layer("embeddings.LayerNorm", dim, "embed_norm")
    local linear, linear_bias = encoder.layer("cls.predictions.transform.dense", { o.dim, o.dim }, "transform.linear",
      outside)
    local last, last_bias = encoder.layer("cls.predictions.transform.LayerNorm", dim, "transform.norm", outside)
    return {
      encoder.tensor("embeddings.word_embeddings.weight", { o.vocab, o.dim }, "embed.weight",
        { tied_to = "cls.predictions.decoder.weight" }),
      encoder.tensor("embeddings.position_embeddings.weight", { o.seq, o.dim }, "pos.weight"),
      encoder.tensor("embeddings.token_type_embeddings.weight", { o.types, o.dim }, "types.weight"),
      norm, norm_bias,
    }, {
      encoder.tensor("cls.predictions.bias", { o.vocab }, "head.bias",
        { outside = true, vocabulary = true, tied_to = "cls.predictions.decoder.bias" }),
      linear, linear_bias, last, last_bias,
    }
  end,
}

-- ---- vision transformers ----------------------------------------------------------------------------------------

local function count(object)
  local n = 0
  for _ in pairs(object) do n = n + 1 end
  return n
end

families.vit = {
  architecture = "ViTForImageClassification", prefix = "vit.", head = "classifier.weight",
  buffers = { "^pooler%.", "^embeddings%.mask_token$" }, -- what a classifier does not read
  known = {
    image_size = { "size", 224 }, patch_size = { "size", 16 }, num_channels = { "size", 3 },
    qkv_bias = { "boolean", true }, id2label = { "object" }, num_labels = { "size", null = true },
  },
  names = {
    ["attn.wq"] = "attention.attention.query", ["attn.wk"] = "attention.attention.key",
    ["attn.wv"] = "attention.attention.value", ["attn.wo"] = "attention.output.dense", norm1 = "layernorm_before",
    ["mlp.fc1"] = "intermediate.dense", ["mlp.fc2"] = "output.dense", norm2 = "layernorm_after",
  },
  options = function(path, values, o)
    if values.image_size % values.patch_size ~= 0 then
      errors.raise("MS_EUNSUPPORTED", "%s: image_size %d is not a multiple of patch_size %d: images with a border "
        .. "that no patch covers are not built", path, values.image_size, values.patch_size)
    end
    o.size, o.patch, o.channels = values.image_size, values.patch_size, values.num_channels
    o.qkv_bias = values.qkv_bias
    o.classes = values.num_labels or values.id2label and count(values.id2label) or 2
  end,
  config = function(o, config)
    config.image_size, config.patch_size, config.num_channels = o.size, o.patch, o.channels
    config.qkv_bias, config.id2label, config.label2id = o.qkv_bias, {}, {}
    for class = 0, o.classes - 1 do
      local label = ("LABEL_%d"):format(class)
      config.id2label[tostring(class)], config.label2id[label] = label, class
    end
  end,
  around = function(o)
    local patches, patches_bias = encoder.layer("embeddings.patch_embeddings.projection",
      { o.dim, o.channels, o.patch, o.patch }, "patches")
    local norm, norm_bias = encoder.layer("layernorm", { o.dim }, "norm")
    local head, head_bias = encoder.layer("classifier", { o.classes, o.dim }, "head", { outside = true })
    return {
      encoder.tensor("embeddings.cls_token", { 1, 1, o.dim }, "class_token"),
      encoder.tensor("embeddings.position_embeddings", { 1, (o.size / o.patch) ^ 2 + 1, o.dim }, "positions"),
      patches, patches_bias,
    }, { norm, norm_bias, head, head_bias }
  end,
}

for model_type, row in pairs(families) do row.model_type, row.base = model_type, false end

return families
