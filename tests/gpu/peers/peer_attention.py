"""Measures torch's scaled_dot_product_attention on the shapes of bench_attention.c, in bf16, by cuDNN and by PyTorch's
FlashAttention-2.

    python3 tests/gpu/peers/peer_attention.py

Prints a JSON line per direction and implementation: TFLOP/s of the median of 20 runs, counted as in bench_attention.c.
"""

import json

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from peer_matmul import median_seconds

SHAPES = [("gpt2", 32, 1024, 12, 12, 64), ("llama", 4, 4096, 32, 8, 64), ("heads of 128", 4, 4096, 32, 8, 128)]
BACKENDS = {"torch cuDNN": SDPBackend.CUDNN_ATTENTION, "torch flash": SDPBackend.FLASH_ATTENTION}


def heads_of(batch, positions, heads, size):
    x = torch.randn(batch, positions, heads, size, device="cuda", dtype=torch.bfloat16)
    return x.transpose(1, 2).requires_grad_()


def main():
    for shape, batch, positions, heads, groups, size in SHAPES:
        q, k, v = heads_of(batch, positions, heads, size), heads_of(batch, positions, groups, size), heads_of(
            batch, positions, groups, size)
        for name, backend in BACKENDS.items():
            def forward():
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != groups)

            try:
                y = forward()
            except RuntimeError as error:
                print(f"{shape}, {name}: {error}", flush=True)
                continue
            dy = torch.randn_like(y)
            ways = {
                "forward": (2e-12, forward),
                "backward": (5e-12, lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)),
            }
            for way, (operations, run) in ways.items():
                seconds = median_seconds(run)
                print(json.dumps({
                    "product": f"{shape}, {way}", "name": name, "us": 1e6 * seconds,
                    "tflops": operations * batch * heads * positions**2 * size / seconds,
                }), flush=True)


if __name__ == "__main__":
    main()
