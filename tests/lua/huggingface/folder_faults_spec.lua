-- Folders that lack a model's files, or have others in their place: what is there is said, and what to do.

local huggingface = require("lua.support.huggingface")
local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" .. ("0"):rep(64) .. "\nsize 548105171\n"
local PAGE = "<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"
local INDEX = '{"metadata": {"total_size": 4}, "weight_map": {"a": "model-00001-of-00003.safetensors", '
  .. '"b": "model-00002-of-00003.safetensors", "c": "model-00003-of-00003.safetensors"}}'

-- A folder with the config of a fixture and files with these texts.
local function folder_with(files, name)
  local folder = scratch.folder()
  scratch.write(folder .. "/config.json", scratch.read(huggingface.FIXTURES .. (name or "llama") .. "/config.json"))
  for file, text in pairs(files) do scratch.write(folder .. "/" .. file, text) end
  return folder
end

-- By what a folder has: its files, and what the message says.
local CASES = {
  ["no weights"] = { {}, "no model.safetensors" },
  ["PyTorch's pickle alone"] = { { ["pytorch_model.bin"] = "PK\3\4" },
    "pytorch_model.bin | pickled | LlamaForCausalLM | from_pretrained | save_pretrained | -safetensors | tokenizer" },
  ["PyTorch's pickles and their index"] = { { ["pytorch_model.bin.index.json"] = "{}",
    ["pytorch_model-00001-of-00002.bin"] = "PK\3\4" }, "pytorch_model | pickled | save_pretrained" },
  ["another binary file"] = { { ["weights.bin"] = "xx" }, "weights.bin | pickled | another" },
  ["Meta's files"] = { { ["consolidated.00.pth"] = "PK\3\4", ["params.json"] = "{}" },
    "consolidated.00.pth | Meta | convert_llama_weights_to_hf.py" },
  ["a GGUF file alone"] = { { ["model-Q4_K_M.gguf"] = "GGUF\3" },
    'model-Q4_K_M.gguf | llama.cpp | gguf_file="model-Q4_K_M.gguf"' },
  ["TensorFlow's weights"] = { { ["tf_model.h5"] = "\137HDF\r\n" }, "tf_model.h5 | TensorFlow | from_tf=True" },
  ["Flax's weights"] = { { ["flax_model.msgpack"] = "x" }, "flax_model.msgpack | Flax | from_flax=True" },
  ["ONNX"] = { { ["model.onnx"] = "x" }, "model.onnx | ONNX" },
  ["a compressed file"] = { { ["model.safetensors.zst"] = "\40\181\47\253" },
    "model.safetensors.zst | packed | zstd -d" },
  ["an unfinished download"] = { { ["model.safetensors.incomplete"] = "x" }, "incomplete | unfinished | hf download" },
  ["a pointer of Git LFS for its weights"] = { { ["model.safetensors"] = POINTER },
    "model.safetensors: | Git LFS | git lfs pull" },
  ["a pointer of Git LFS for one of several files"] = { {
    ["model.safetensors.index.json"] = INDEX, ["model-00001-of-00003.safetensors"] = POINTER,
    ["model-00002-of-00003.safetensors"] = POINTER, ["model-00003-of-00003.safetensors"] = POINTER,
  }, "model-00001-of-00003.safetensors: | git lfs pull" },
  ["a pointer of Git LFS for its config"] = { { ["config.json"] = POINTER }, "config.json: | Git LFS | git lfs pull" },
  ["a pointer of Git LFS for its index"] = { { ["model.safetensors.index.json"] = POINTER },
    "model.safetensors.index.json | git lfs pull" },
  ["a page of the web for its config"] = { { ["config.json"] = "\n  " .. PAGE }, "config.json: | HTML | hf download" },
  ["a page of the web for its weights"] = { { ["model.safetensors"] = PAGE },
    "model.safetensors: | HTML | hf download" },
  ["a page of the web for its index"] = { { ["model.safetensors.index.json"] = PAGE }, "index.json: | HTML" },
  ["the answer of a server for its config"] = { { ["config.json"] = "Entry not found\n" },
    'config.json: | object | "Entry not found" | hf download' },
  ["a config with a byte order mark"] = { { ["config.json"] = "\239\187\191{}" }, "config.json: | byte order mark" },
  ["a config in UTF-16"] = { { ["config.json"] = "\255\254{\0}\0" }, "config.json: | UTF-16 | iconv" },
  ["a list for its config"] = { { ["config.json"] = '["a"]' }, "config.json: | object" },
  ["an empty config"] = { { ["config.json"] = "" }, "config.json: | empty | again" },
  ["a pickle under the name of safetensors"] = { { ["model.safetensors"] = "PK\3\4" .. ("x"):rep(100) },
    "model.safetensors: | zip | pytorch_model.bin | convert" },
  ["an old pickle under the name of safetensors"] = { { ["model.safetensors"] = "\128\2}q\0" }, "pickle | convert" },
  ["a GGUF model under the name of safetensors"] = { { ["model.safetensors"] = "GGUF\3" }, "GGUF | Hugging Face" },
  ["zstd under the name of safetensors"] = { { ["model.safetensors"] = "\40\181\47\253xx" }, "zstd -d" },
  ["gzip under the name of its config"] = { { ["config.json"] = "\31\139\8x" }, "config.json: | gzip | gunzip" },
  ["an index without its files"] = { { ["model.safetensors.index.json"] = INDEX },
    "3 of the 3 | model-00001-of-00003.safetensors | model-00003-of-00003.safetensors | not complete | hf download" },
  ["an index without one of its files"] = { { ["model.safetensors.index.json"] = INDEX,
    ["model-00001-of-00003.safetensors"] = "x", ["model-00003-of-00003.safetensors"] = "x" },
    "1 of the 3 | model-00002-of-00003.safetensors | not complete" },
  ["a file of no known kind"] = { { ["model.safetensors"] = "x" }, "model.safetensors" },
}

describe("a folder that has", function()
  teardown(scratch.clear)

  for title, case in pairs(CASES) do
    it("K4 " .. title .. " is refused with what is there", function()
      local text = message(ms.huggingface.model, folder_with(case[1]))
      has(text, case[2])
      assert.is_true(#text < 700, text)
    end)
  end

  it("K4 other weights is to be converted by the class of its own model", function()
    has(message(ms.huggingface.model, folder_with({ ["pytorch_model.bin"] = "x" }, "bert")), "BertForMaskedLM")
    has(message(ms.huggingface.model, folder_with({ ["pytorch_model.bin"] = "x" }, "gpt2")), "GPT2LMHeadModel")
  end)

  it("K4 an index with many files that are not there is named some of them", function()
    local map = {}
    for i = 1, 30 do map[i] = ('"t%d": "model-%05d-of-00030.safetensors"'):format(i, i) end
    local index = '{"weight_map": {' .. table.concat(map, ",") .. "}}"
    local text = message(ms.huggingface.model, folder_with({ ["model.safetensors.index.json"] = index }))
    has(text, "30 of the 30 | model-00004-of-00030.safetensors | 26 more")
  end)

  it("K4 safetensors next to others is read", function()
    local folder = huggingface.copy_of("llama")
    scratch.write(folder .. "/pytorch_model.bin", "PK\3\4")
    scratch.write(folder .. "/model.gguf", "GGUF")
    assert.equal(41, ms.huggingface.model(folder).config.vocab)
  end)

  it("K4 weights as one file and as several is read from the one, and a note says so", function()
    local recipe = program.recipe([[
      local ms = require "moonshard"
      ms.huggingface.model((ms.args { folder = "" }).folder)
    ]])
    local folder = huggingface.copy_of("llama")
    local function said(index)
      scratch.write(folder .. "/model.safetensors.index.json", index)
      local ended = program.run { "run", recipe, "folder=" .. folder }
      assert.equal(0, ended.status, ended.err)
      return ended.err
    end
    has(said(INDEX), folder .. " | model.safetensors | model-00001-of-00003.safetensors")
    assert.is_nil(said('{"weight_map": {"a": "model.safetensors"}}'):find("is read", 1, true))
    assert.is_nil(said(POINTER):find("is read", 1, true))
    os.remove(recipe)
  end)

  it("K4 a path with the characters of patterns is named as it is", function()
    local folder = scratch.folder() .. "/a[1]*"
    assert.equal(0, os.execute(("mkdir '%s'"):format(folder)))
    scratch.write(folder .. "/config.json", scratch.read(huggingface.FIXTURES .. "llama/config.json"))
    scratch.write(folder .. "/x.gguf", "GGUF")
    has(message(ms.huggingface.model, folder), "a[1]* | x.gguf")
  end)
end)

describe("adapters, and a file that is inspected,", function()
  teardown(scratch.clear)

  it("K4 are refused with what is there, too", function()
    local folder = scratch.folder()
    scratch.write(folder .. "/adapter_config.json", PAGE)
    scratch.write(folder .. "/adapter_model.safetensors",
      scratch.read(huggingface.FIXTURES .. "llama_tied/model.safetensors"))
    local model = ms.huggingface.model(huggingface.FIXTURES .. "llama")
    has(message(ms.lora.load, model, folder), "adapter_config.json: | HTML")
    scratch.write(folder .. "/adapter_model.safetensors", PAGE)
    has(message(ms.lora.load, model, folder), "adapter_model.safetensors: | HTML")
    local ended = program.run({ "inspect", folder .. "/adapter_model.safetensors" })
    assert.equal(2, ended.status)
    has(ended.err, "adapter_model.safetensors: | HTML | hf download")
  end)
end)

describe("a path that is", function()
  teardown(scratch.clear)

  it("K4 a file is no folder", function()
    local folder = huggingface.copy_of("llama")
    has(message(ms.huggingface.model, folder .. "/model.safetensors"), "model.safetensors: | file | folder")
  end)
end)
