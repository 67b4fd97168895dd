"""The Llama of ms.models.llama for peer_fsdp2.py: RMS norms, rotary positions, grouped queries, SwiGLU, nothing tied.

Rotary positions pair element d with d + D/2 and come from one table that all layers share, as Hugging Face's and
torchtitan's models have it, so that they cost next to no memory. Heads of keys and values are half of those of queries.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotary_table(seq, head_dim, theta=10000.0):
    """cos and sin [seq, head_dim / 2]"""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.arange(seq, dtype=torch.float32)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x, table):
    """x [batch, heads, seq, head_dim]"""
    cos, sin = (part[: x.shape[2]].to(x.dtype) for part in table)
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.kv_heads = heads, heads // 2
        kv_dim = dim // heads * self.kv_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, kv_dim, bias=False)
        self.wv = nn.Linear(dim, kv_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x, table):
        batch, seq, dim = x.shape
        q = self.wq(x).view(batch, seq, self.heads, -1).transpose(1, 2)
        k = self.wk(x).view(batch, seq, self.kv_heads, -1).transpose(1, 2)
        v = self.wv(x).view(batch, seq, self.kv_heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(rotate(q, table), rotate(k, table), v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(batch, seq, dim))


class Mlp(nn.Module):
    def __init__(self, dim, ffn):
        super().__init__()
        self.w1 = nn.Linear(dim, ffn, bias=False)
        self.w3 = nn.Linear(dim, ffn, bias=False)
        self.w2 = nn.Linear(ffn, dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dim, heads, ffn):
        super().__init__()
        self.attn_norm = nn.RMSNorm(dim, eps=1e-5)
        self.attn = Attention(dim, heads)
        self.ffn_norm = nn.RMSNorm(dim, eps=1e-5)
        self.mlp = Mlp(dim, ffn)

    def forward(self, x, table):
        x = x + self.attn(self.attn_norm(x), table)
        return x + self.mlp(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.dim)
        self.layers = nn.ModuleList(Block(args.dim, args.heads, args.ffn) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.dim, eps=1e-5)
        self.head = nn.Linear(args.dim, args.vocab, bias=False)
        self.table = rotary_table(args.seq, args.dim // args.heads)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.table)
        return self.head(self.norm(x))
