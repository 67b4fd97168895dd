-- What configs of mixtures of experts say of their routers: how many experts a token has, and the auxiliary loss, which
-- the reference library adds if output_router_logits says so.

local errors = require("moonshard.base.error")

local routers = {}

-- As for fields.read.
routers.KNOWN = {
  output_router_logits = { "boolean", false }, router_aux_loss_coef = { "factor", 0.001 },
  num_experts_per_tok = { "size" },
}

---Raises for options with fewer experts than a token has.
---@param path string of config.json
---@param o table options with experts and experts_per_token
---@param field string that says the number of experts
function routers.check(path, o, field)
  if o.experts_per_token <= o.experts then return end
  errors.invalid("%s: num_experts_per_tok is %d, and there are %d experts (%s)", path, o.experts_per_token, o.experts,
    field)
end

---@param path string of config.json
---@param values table read with routers.KNOWN
---@param o table options with experts and experts_per_token; changed
---@param field string that says the number of experts
function routers.read(path, values, o, field)
  routers.check(path, o, field)
  if values.output_router_logits and values.router_aux_loss_coef > 0 then o.aux_loss = values.router_aux_loss_coef end
end

---@param o table
---@param config table
function routers.write(o, config)
  config.output_router_logits = o.aux_loss > 0
  if o.aux_loss > 0 then config.router_aux_loss_coef = o.aux_loss end
  config.num_experts_per_tok = o.experts_per_token
end

---Which layers have experts: every so many (decoder_sparse_step), without those of mlp_only_layers, which count from 0.
---@param values table with both fields
---@param layers integer
---@return boolean[]? nil: all
function routers.sparse_of(values, layers)
  local dense, sparse, all = {}, {}, true
  for _, i in ipairs(values.mlp_only_layers or {}) do dense[i + 1] = true end
  for i = 1, layers do
    sparse[i] = not dense[i] and i % values.decoder_sparse_step == 0
    all = all and sparse[i]
  end
  return not all and sparse or nil
end

---@param o table options
---@param config table gets both fields
function routers.write_sparse(o, config)
  config.decoder_sparse_step = 1
  for i = 1, o.layers do
    if o.sparse and not o.sparse[i] then
      config.mlp_only_layers = config.mlp_only_layers or {}
      table.insert(config.mlp_only_layers, i - 1)
    end
  end
end

return routers
