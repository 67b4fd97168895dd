"""The PyTorch side of `make bench-gpu`: the same GPT-2 or Llama with FSDP2 at world size 1, bf16, fused AdamW.

    python3 tests/gpu/peers/peer_torch.py --model gpt2 --batch 32 --compile

Prints one JSON line: tokens_per_s and step_ms (median after the warm-up), flops_per_token counted as in bench.lua,
peak_bytes (the allocator's), and the losses of the first and the last step. Attention is PyTorch's choice for
scaled_dot_product_attention, or cuDNN with --attention cudnn. Tokens are random.
"""

import argparse
import contextlib
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

SIZES = {
    "gpt2": dict(vocab=50304, layers=12, dim=768, heads=12, kv_heads=12, ffn=3072),
    "llama": dict(vocab=128256, layers=16, dim=2048, heads=32, kv_heads=8, ffn=8192),
}


class Attention(nn.Module):
    def __init__(self, size, rotary):
        super().__init__()
        self.heads, self.kv_heads = size["heads"], size["kv_heads"]
        head = size["dim"] // self.heads
        bias = not rotary
        self.wq = nn.Linear(size["dim"], self.heads * head, bias=bias)
        self.wk = nn.Linear(size["dim"], self.kv_heads * head, bias=bias)
        self.wv = nn.Linear(size["dim"], self.kv_heads * head, bias=bias)
        self.wo = nn.Linear(size["dim"], size["dim"], bias=bias)

    def forward(self, x, turn):
        batch, seq, dim = x.shape
        q = self.wq(x).view(batch, seq, self.heads, -1).transpose(1, 2)
        k = self.wk(x).view(batch, seq, self.kv_heads, -1).transpose(1, 2)
        v = self.wv(x).view(batch, seq, self.kv_heads, -1).transpose(1, 2)
        if turn is not None:
            q, k = rotate(q, turn), rotate(k, turn)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return self.wo(y.transpose(1, 2).reshape(batch, seq, dim))


def rotate(x, turn):
    cos, sin = turn
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, size, llama):
        super().__init__()
        norm = nn.RMSNorm if llama else nn.LayerNorm
        self.norm1, self.norm2 = norm(size["dim"]), norm(size["dim"])
        self.attention = Attention(size, llama)
        self.llama = llama
        self.up = nn.Linear(size["dim"], size["ffn"], bias=not llama)
        self.down = nn.Linear(size["ffn"], size["dim"], bias=not llama)
        if llama:
            self.gate = nn.Linear(size["dim"], size["ffn"], bias=False)

    def forward(self, x, turn):
        x = x + self.attention(self.norm1(x), turn)
        h = self.norm2(x)
        h = F.silu(self.gate(h)) * self.up(h) if self.llama else F.gelu(self.up(h), approximate="tanh")
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self, size, seq, llama):
        super().__init__()
        self.embed = nn.Embedding(size["vocab"], size["dim"])
        self.positions = None if llama else nn.Embedding(seq, size["dim"])
        self.layers = nn.ModuleList(Block(size, llama) for _ in range(size["layers"]))
        self.norm = (nn.RMSNorm if llama else nn.LayerNorm)(size["dim"])
        self.head = nn.Linear(size["dim"], size["vocab"], bias=False)
        half = size["dim"] // size["heads"] // 2
        angle = torch.outer(torch.arange(seq), 500000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        turn = (self.cos, self.sin) if self.positions is None else None
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x, turn)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1))


def backends(choice, device):
    """Prefers cuDNN's attention if requested; by default PyTorch prefers another backend."""
    if choice == "default" or device == "cpu":
        return contextlib.nullcontext()
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=SIZES, default="gpt2")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--warmup", type=int, default=10)
    p.add_argument("--layers", type=int)
    p.add_argument("--vocab", type=int)
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--attention", choices=["default", "cudnn"], default="default")
    a = p.parse_args()
    for name, value in dict(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29533").items():
        os.environ.setdefault(name, value)
    dist.init_process_group("nccl" if a.device == "cuda" else "gloo")
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    size = dict(SIZES[a.model])
    size.update({k: v for k, v in (("layers", a.layers), ("vocab", a.vocab)) if v})
    model = Model(size, a.seq, a.model == "llama").to(a.device)
    parameters = sum(q.numel() for q in model.parameters())
    mesh = init_device_mesh(a.device, (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    step_model = torch.compile(model) if a.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    words = torch.randint(size["vocab"], (a.batch, a.seq + 1), device=a.device)
    times, losses = [], []
    for step in range(a.steps):
        begin = time.perf_counter()
        with backends(a.attention, a.device):
            loss = step_model(words[:, :-1], words[:, 1:])
        loss.backward()
        torch.nn.utils.get_total_norm([q.grad for q in model.parameters()])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step >= a.warmup:
            times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    print(json.dumps({
        "name": f"pytorch_{'compiled' if a.compile else 'eager'}{'_cudnn' if a.attention == 'cudnn' else ''}",
        "model": a.model,
        "tokens_per_s": a.batch * a.seq / seconds, "step_ms": 1e3 * seconds,
        "flops_per_token": 6 * parameters + 12 * size["layers"] * size["dim"] * a.seq,
        "peak_bytes": torch.cuda.max_memory_allocated() if a.device == "cuda" else 0,
        "losses": [losses[0], losses[-1]], "torch": torch.__version__,
    }))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
