"""Measures torch._grouped_mm on the shapes of bench_experts.c, in bf16, with the same unequal shares of the rows.

    python3 tests/gpu/peers/peer_experts.py

Prints a JSON line per product, as peer_matmul.py does. Weight gradients are bf16 here and f32 in ours.
"""

import torch

from peer_matmul import measure

LAYERS = [
    ("8 experts, up", 32768, 8, 1024, 3584), ("8 experts, down", 32768, 8, 3584, 1024),
    ("8 large experts, up", 16384, 8, 4096, 14336), ("64 experts, up", 65536, 64, 2048, 768),
    ("64 experts, down", 65536, 64, 768, 2048), ("64 experts, few rows", 2048, 64, 2048, 768),
]


def random(*shape):
    return torch.rand(*shape, device="cuda", dtype=torch.bfloat16) * 2 - 1


def main():
    for name, rows, experts, inner, outer in LAYERS:
        shares = [1 + e % 3 for e in range(experts)]
        ends = [rows * sum(shares[: e + 1]) // sum(shares) for e in range(experts)]
        offsets = torch.tensor(ends, device="cuda", dtype=torch.int32)
        x, w, dy = random(rows, inner), random(experts, outer, inner), random(rows, outer)
        ways = {
            "forward": lambda: torch._grouped_mm(x, w.transpose(-2, -1), offs=offsets),
            "gradient": lambda: torch._grouped_mm(dy, w, offs=offsets),
            "weight gradient": lambda: torch._grouped_mm(dy.t(), x, offs=offsets),
        }
        measure(name, ways, 2 * rows * inner * outer)


if __name__ == "__main__":
    main()
