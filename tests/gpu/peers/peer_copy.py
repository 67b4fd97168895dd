"""Measures the memory bandwidth of a copy, with which `make bench-gpu` compares kernels that move bytes.

    python3 tests/gpu/peers/peer_copy.py

Prints one JSON line: copy_gb_s, GB per second read and written by a copy of 2 GiB (median of 20).
"""

import argparse
import json
import statistics
import time

import torch


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--mib", type=int, default=2048)
    p.add_argument("--repeats", type=int, default=20)
    a = p.parse_args()
    x = torch.empty(a.mib << 20, dtype=torch.uint8, device=a.device).random_()
    y = torch.empty_like(x)
    seconds = []
    for _ in range(a.repeats + 2):
        if a.device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            y.copy_(x)
            end.record()
            torch.cuda.synchronize()
            seconds.append(1e-3 * begin.elapsed_time(end))
        else:
            began = time.perf_counter()
            y.copy_(x)
            seconds.append(time.perf_counter() - began)
    print(json.dumps({"copy_gb_s": 2e-9 * x.numel() / statistics.median(seconds[2:])}))


if __name__ == "__main__":
    main()
