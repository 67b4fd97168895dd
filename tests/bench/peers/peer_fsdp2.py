"""The peer of the training benchmark: the same GPT or Llama under PyTorch's FSDP2, on the CPU with gloo; with --tensor,
the GPT's layers divided by parallelize_module, too.

    build/peers/venv/bin/python tests/bench/peers/peer_fsdp2.py --model gpt --shard 2 --dtype bf16

One process a rank, one thread each, every block and the root a fully_shard unit, the fused CPU AdamW. It prints one
JSON line: tokens_per_s and step_ms (median after the warm-up), the losses of the first steps (mean over ranks, before
each step's update), peak_rss_mib (the largest rank), and grown_mib: by how much that is more than before the model was
made, so without the libraries. With --memory it prints allocated_mib instead: the most bytes
that PyTorch's CPU allocator holds at once in the steps after the first (rank 0), from the profiler's record of every
allocation since the model was made.

So that both sides compute the same numbers it can start from files:
  --weights F   f32 parameters: a .safetensors file with the names below, or, under any other name, raw little-endian
                f32, all parameters one after the other in the order of --list. --save-weights F writes either kind.
  --tokens F    raw little-endian int32, [steps][ranks][batch][seq + 1], where ranks of --tensor share rows; a row's inputs are its first seq tokens, its
                targets the last seq. The file is read round and round.
Parameters of the GPT: embed.weight [vocab, dim], pos.weight [seq, dim], layers.N.norm1, layers.N.attn.wq/wk/wv/wo,
layers.N.norm2, layers.N.mlp.fc1/fc2 (each with weight, as [out, in], and bias), norm, head.weight [vocab, dim]. Those of the
Llama: peer_llama.py.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import struct
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peer_llama import Llama


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.size = dim // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        batch, seq, _ = x.shape
        q, k, v = (w(x).view(batch, seq, -1, self.size).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, seq, -1))


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.dim)
        self.pos = nn.Embedding(args.seq, args.dim)
        self.layers = nn.ModuleList(Block(args.dim, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.dim)
        self.head = nn.Linear(args.dim, args.vocab, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        x = self.embed(tokens) + self.pos.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make_model(args):
    return Llama(args) if args.model == "llama" else Gpt(args)


def read_weights(model, path):
    """Fills the parameters from a safetensors or raw f32 file."""
    if path.endswith(".safetensors"):
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + size)
        for name, parameter in model.named_parameters():
            entry = header[name]
            if entry["dtype"] != "F32" or entry["shape"] != list(parameter.shape):
                sys.exit(f"{path}: {name} is {entry['dtype']} {entry['shape']}, not F32 {list(parameter.shape)}")
            begin, end = entry["data_offsets"]
            values = np.frombuffer(data[begin:end].tobytes(), dtype="<f4")
            parameter.data.copy_(torch.from_numpy(values.copy()).view(parameter.shape))
        return
    values = np.fromfile(path, dtype="<f4")
    total = sum(p.numel() for p in model.parameters())
    if values.size != total:
        sys.exit(f"{path}: holds {values.size} numbers, the model has {total} parameters")
    at = 0
    for parameter in model.parameters():
        part = values[at : at + parameter.numel()]
        parameter.data.copy_(torch.from_numpy(part.copy()).view(parameter.shape))
        at += parameter.numel()


def write_weights(model, path):
    """Writes the parameters, f32, as safetensors or raw."""
    header, at = {}, 0
    for name, parameter in model.named_parameters():
        size = 4 * parameter.numel()
        header[name] = {"dtype": "F32", "shape": list(parameter.shape), "data_offsets": [at, at + size]}
        at += size
    with open(path, "wb") as file:
        if path.endswith(".safetensors"):
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            file.write(struct.pack("<Q", len(text)) + text)
        for parameter in model.parameters():
            file.write(parameter.detach().numpy().astype("<f4").tobytes())


def batches(args, rank):
    """Yields this rank's (inputs, targets), each [batch, seq], for every step."""
    ranks = args.world // args.tensor
    shape = (ranks, args.batch, args.seq + 1)
    if args.tokens:
        tokens = np.fromfile(args.tokens, dtype="<i4").astype(np.int64)
        per_step = ranks * args.batch * (args.seq + 1)
        if tokens.size == 0 or tokens.size % per_step:
            sys.exit(f"{args.tokens}: holds {tokens.size} tokens, not a multiple of {per_step} a step")
        tokens = torch.from_numpy(tokens).view(-1, *shape)
    else:
        tokens = torch.randint(args.vocab, (8, *shape), generator=torch.Generator().manual_seed(args.seed))
    for step in range(args.steps):
        rows = tokens[step % len(tokens), rank // args.tensor]
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def divide_layers(model, mesh):
    """Heads and hidden features over the ranks, and the logits' classes, gathered for the loss."""
    styles = {"attn.wq": "col", "attn.wk": "col", "attn.wv": "col", "attn.wo": "row", "mlp.fc1": "col", "mlp.fc2": "row"}
    for layer in model.layers:
        parallelize_module(
            layer, mesh, {name: ColwiseParallel() if style == "col" else RowwiseParallel() for name, style in styles.items()}
        )
    parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})


def shard_model(model, args):
    if args.tensor > 1:
        both = init_device_mesh("cpu", (args.shard, args.tensor), mesh_dim_names=("shard", "tensor"))
        divide_layers(model, both["tensor"])
        mesh = both["shard"]
    elif args.replicate > 1:
        mesh = init_device_mesh("cpu", (args.replicate, args.shard), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (args.shard,), mesh_dim_names=("shard",))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if args.dtype == "bf16" else torch.float32, reduce_dtype=torch.float32
    )
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def train(args, rank, step_mark=contextlib.nullcontext):
    resident_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    torch.manual_seed(args.seed)
    model = make_model(args)
    if args.weights:
        read_weights(model, args.weights)
    if args.save_weights and rank == 0:
        write_weights(model, args.save_weights)
    shard_model(model, args)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(args.beta1, args.beta2), eps=args.eps, weight_decay=args.weight_decay, fused=True
    )

    losses, step_ms = [], []
    for inputs, targets in batches(args, rank):
        began = time.perf_counter()
        with step_mark():
            logits = model(inputs)
            loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
            loss.backward()
            if args.max_norm > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
            optimizer.step()
            optimizer.zero_grad()
        step_ms.append(1e3 * (time.perf_counter() - began))
        losses.append(loss.detach())

    mean_losses = torch.stack(losses[: args.report])
    dist.all_reduce(mean_losses)
    peak = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    grown = peak - resident_before
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    dist.all_reduce(grown, op=dist.ReduceOp.MAX)
    median = statistics.median(step_ms[args.warmup :])
    return {
        "name": f"fsdp2_{args.model}_{args.dtype}_{args.replicate}x{args.shard}",
        "torch": torch.__version__,
        "tokens_per_s": round(args.world // args.tensor * args.batch * args.seq / median * 1e3, 1),
        "step_ms": round(median, 3),
        "losses": [round(x, 6) for x in (mean_losses / args.world).tolist()],
        "peak_rss_mib": round(peak.item(), 1),
        "grown_mib": round(grown.item(), 1),
    }


def measure_memory(args, rank):
    """The profiler slows steps down, so a run with it measures nothing else."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(args, rank, step_mark=lambda: record_function("bench_step"))
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    steps = [event.start_ns() for event in events if event.name() == "bench_step"]
    held, most = 0, 0
    for event in events:
        if event.name() != "[memory]":
            continue
        held += event.nbytes()
        if event.start_ns() >= steps[1]:
            most = max(most, held)
    return {"name": f"fsdp2_memory_{args.model}_{args.dtype}_{args.replicate}x{args.shard}", "allocated_mib": round(most / 2**20, 1)}


def rank_main(rank, args, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.world)
    result = measure_memory(args, rank) if args.memory else train(args, rank)
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", choices=("gpt", "llama"), default="gpt")
    for name, default in dict(layers=6, dim=384, heads=6, ffn=1024, seq=256, batch=8, vocab=256, replicate=1, shard=2, tensor=1).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in dict(steps=25, warmup=5, report=20, seed=1).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in dict(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, max_norm=0.0).items():
        parser.add_argument(f"--{name}", type=float, default=default)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--weights", default="")
    parser.add_argument("--save-weights", default="")
    parser.add_argument("--tokens", default="")
    parser.add_argument("--rank", type=int, help="be this rank of several that others start; they meet at --store")
    parser.add_argument("--store", help="a file that all ranks see")
    parser.add_argument("--memory", action="store_true", help="measure what is allocated, and nothing else")
    parser.add_argument("--list", action="store_true", help="print the parameters' names and shapes, one a line, and stop")
    args = parser.parse_args()
    args.world = args.replicate * args.shard * args.tensor

    if args.list:
        for name, parameter in make_model(args).named_parameters():
            print(name, *parameter.shape)
        return
    if args.steps <= args.warmup:
        sys.exit(f"--steps {args.steps} leaves nothing to measure after --warmup {args.warmup}")
    if args.rank is not None:
        rank_main(args.rank, args, args.store)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, args=(args, os.path.join(folder, "store")), nprocs=args.world)


if __name__ == "__main__":
    main()
