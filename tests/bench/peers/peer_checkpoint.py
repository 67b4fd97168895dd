"""The peer of the checkpoint benchmark: torch.distributed.checkpoint on the model of peer_fsdp2.py, the same ranks.

    build/peers/venv/bin/python tests/bench/peers/peer_checkpoint.py --shard 2 --dir build/bench/dcp

Model and AdamW state in f32, one file a rank, synced to disk as its writer does by default; with --cached not, which ends
in the page cache. It prints one JSON line, of the best of --rounds: save_s, load_s from the page cache and load_cold_s
from the disk, from the first rank's beginning to the last one's end; the medians as save_median_s and so on.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import types

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

import peer_fsdp2

BATCH = 1


def timed(call):
    dist.barrier()
    began = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - began


def evict(folder):
    for name in os.listdir(folder):
        file = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def measure(args, rank):
    model = peer_fsdp2.Gpt(args)
    peer_fsdp2.shard_model(model, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    tokens = torch.zeros(BATCH, args.seq, dtype=torch.int64)
    model(tokens).float().mean().backward()
    optimizer.step()
    seconds = {"save": [], "load_cold": [], "load": []}
    for number in range(args.rounds):
        path = os.path.join(args.dir, str(number))

        def state():
            parameters, moments = get_state_dict(model, optimizer)
            return {"model": parameters, "optimizer": moments}

        def save():
            dcp.save(state(), storage_writer=dcp.FileSystemWriter(path, sync_files=not args.cached))

        seconds["save"].append(timed(save))
        if rank == 0:
            evict(path)
        for source in ("load_cold", "load"):
            seconds[source].append(timed(lambda: dcp.load(state(), storage_reader=dcp.FileSystemReader(path))))
        dist.barrier()
        if rank == 0:
            shutil.rmtree(path)
    result = {"torch": torch.__version__}
    for what, times in seconds.items():
        result[what + "_s"], result[what + "_median_s"] = min(times), statistics.median(times)
    return result


def rank_main(rank, args, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.shard)
    result = measure(args, rank)
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name, default in dict(layers=6, dim=384, heads=6, seq=256, vocab=256, shard=2, rounds=5).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dir", default="build/bench/dcp")
    parser.add_argument("--cached", action="store_true")
    args = types.SimpleNamespace(**vars(parser.parse_args()), replicate=1, dtype="f32")
    os.makedirs(args.dir, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, args=(args, os.path.join(folder, "store")), nprocs=args.shard)
    shutil.rmtree(args.dir)


if __name__ == "__main__":
    main()
