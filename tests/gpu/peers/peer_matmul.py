"""Measures torch.matmul on the shapes of bench_matmul.c, in bf16.

    python3 tests/gpu/peers/peer_matmul.py

Prints a JSON line per product: TFLOP/s of the median of 20 runs. Weight gradients are bf16 here and f32 in ours.
"""

import json
import statistics

import torch

LAYERS = [
    ("gpt2 projection", 32768, 768, 768), ("gpt2 up", 32768, 768, 3072), ("gpt2 down", 32768, 3072, 768),
    ("gpt2 head", 32768, 768, 50304), ("llama projection", 16384, 2048, 2048), ("llama key", 16384, 2048, 512),
    ("llama up", 16384, 2048, 8192), ("llama down", 16384, 8192, 2048), ("llama head", 16384, 2048, 128256),
]


def median_seconds(run):
    times = []
    for _ in range(25):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times[5:])


def measure(name, ways, operations):
    """Runs the ways of a product, of so many operations each, and prints a line for each."""
    for way, run in ways.items():
        seconds = median_seconds(run)
        print(json.dumps({
            "product": f"{name}, {way}", "name": "torch", "us": 1e6 * seconds, "tflops": 1e-12 * operations / seconds,
        }), flush=True)


def main():
    for name, tokens, inner, outer in LAYERS:
        x = torch.rand(tokens, inner, device="cuda", dtype=torch.bfloat16) * 2 - 1
        w = torch.rand(outer, inner, device="cuda", dtype=torch.bfloat16) * 2 - 1
        dy = torch.rand(tokens, outer, device="cuda", dtype=torch.bfloat16) * 2 - 1
        y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(w)
        ways = {
            "forward": lambda: torch.matmul(x, w.t(), out=y),
            "gradient": lambda: torch.matmul(dy, w, out=dx),
            "weight gradient": lambda: torch.matmul(dy.t(), x, out=dw),
        }
        measure(name, ways, 2 * tokens * inner * outer)


if __name__ == "__main__":
    main()
