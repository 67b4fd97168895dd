"""Tokens that transformers generates in a second, on the CPU: the models of generate.lua, with random weights.

    build/peers/venv/bin/python tests/bench/peers/peer_generate.py gpt2 1 64 64

prints one JSON line for a family, a number of prompts, their tokens, and the tokens that each is continued with.
"""

import json
import os
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

ROUNDS = 3


def make(family):
    if family == "gpt2":
        return GPT2LMHeadModel(GPT2Config())
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=32000, num_hidden_layers=12, hidden_size=768, num_attention_heads=12, num_key_value_heads=4,
            head_dim=64, intermediate_size=2048, max_position_embeddings=1024, tie_word_embeddings=False,
        )
    )


def main():
    family, batch, prompt, tokens = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    model = make(family).eval()
    ids = torch.tensor([[(31 * t + 7 * i) % 1000 for t in range(1, prompt + 1)] for i in range(1, batch + 1)])
    best = float("inf")
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        with torch.no_grad():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), min_new_tokens=tokens, max_new_tokens=tokens,
                do_sample=False, use_cache=True, pad_token_id=0,
            )
        best = min(best, time.perf_counter() - began)
    print(json.dumps({"family": family, "batch": batch, "tokens_per_s": batch * tokens / best}))


main()
