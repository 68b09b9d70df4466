#!/usr/bin/env python3
"""The same training step in PyTorch: what tests/bench/step is measured against.

It is the decoder of Switchyard on the CPU, in fp32, or with --bf16 in the faster of fp32 and autocast to
bf16:

- pre-norm RMSNorm blocks, RoPE on half-split heads, grouped-query causal attention
- an MoE FFN of SwiGLU experts (top k of a softmax, renormalised, dropless), an untied output
- cross-entropy, load-balancing loss per sequence and router z-loss
- clipping at norm 1 and AdamW with decay on the matrices

With --experts 0 it is nanoGPT's dense decoder instead (configs/nanogpt-cpu.ini): LayerNorm without
bias, learned positions, a GELU FFN, a tied output. Weights and tokens are random, because only time is
measured here.

A user runs it alone and reads one JSON line:

    python3 tests/bench/pytorch_step.py --steps 20
    {"seconds": 21.3, "steps": 20, "tokens_per_second": 1920.1, "loss": 5.55, "dispatch": "loop", ...}

tests/bench/step runs it with --serve and takes turns with it. The protocol is lines of text:

    it prints  {"ready": true, "dispatch": "loop", "compile": false, "torch": "2.1.0", "threads": 2, ...}
    it reads   N\\n                     an integer: run N steps now
    it prints  {"seconds": 1.5, "steps": N, "tokens_per_second": 2730.7, "loss": 5.55}
    ...                                 until its input ends

Between turns it waits in a read and uses no core: its OpenMP threads sleep a few milliseconds after a
turn. Leave OMP_WAIT_POLICY unset: `passive` makes it 7 % slower. Nothing but these lines goes to
standard output; the settings that it tries go to standard error. Exit code 3: this Python has no
PyTorch.

`--dispatch auto` (the default) times every way of running the experts, eager and, with --compile,
compiled too. It keeps the fastest, so the peer is the best of its settings. The dense decoder has no
shape that depends on data and is compiled whole. PyTorch should come with MKL or with OpenBLAS for
OpenMP (Debian: python3-torch with libopenblas0-openmp). With OpenBLAS for pthreads it runs at half its
speed.
"""

import argparse
import json
import os
import sys
import time

# Freed memory stays mapped, on huge pages if possible: 5-10 % faster here. glibc reads these
# variables when it starts.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000",
             "MALLOC_TOP_PAD_": "100000000", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
if __name__ == "__main__" and "MALLOC_TOP_PAD_" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    print(f"pytorch_step.py: no PyTorch here: {error}", file=sys.stderr)
    sys.exit(3)


class RmsNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        if hasattr(F, "rms_norm"):
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class LayerNorm(nn.Module):  # without bias, which only recent versions of nn.LayerNorm allow
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight)


class Attention(nn.Module):
    def __init__(self, o, rotates=True):
        super().__init__()
        self.rotates = rotates
        self.heads, self.kv_heads, self.head_dim = o.heads, o.kv_heads, o.d_model // o.heads
        self.qkv = nn.Linear(o.d_model, (o.heads + 2 * o.kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(o.d_model, o.d_model, bias=False)

    def forward(self, x, cos=None, sin=None):  # x: [B, S, D]; cos, sin: [S, 1, head_dim / 2]
        b, s, d = x.shape
        q, k, v = (self.qkv(x).view(b, s, -1, self.head_dim)
                   .split([self.heads, self.kv_heads, self.kv_heads], 2))
        if self.rotates:
            q, k = rope(q, cos, sin), rope(k, cos, sin)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self.kv_heads < self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        y = causal_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, s, d))


def causal_attention(q, k, v):  # [B, H, S, head_dim]
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)  # PyTorch 1
    return (q @ k.transpose(2, 3) * q.shape[3] ** -0.5).masked_fill(future, float("-inf")).softmax(-1) @ v


def rope(x, cos, sin):  # x: [B, S, H, head_dim]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Moe(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.experts, self.top_k, self.dispatch = o.experts, o.top_k, o.dispatch
        self.router, self.swiglu = nn.Linear(o.d_model, o.experts, bias=False), SwiGlu()
        shapes = (2 * o.d_ff, o.d_model), (o.d_model, o.d_ff)
        if o.dispatch == "bmm":
            self.gate_up, self.down = (nn.Parameter(torch.empty(o.experts, *shape)) for shape in shapes)
        else:  # a parameter per expert: slices of one tensor would copy its whole gradient
            self.gate_up, self.down = (nn.ParameterList(torch.empty(shape) for _ in range(o.experts)) for shape in shapes)

    def forward(self, x):  # x: [B, S, D] -> [B, S, D] and the layer's two losses
        b, s, d = x.shape
        logits = self.router(x)
        scores = logits.softmax(-1)
        weights, chosen = scores.topk(self.top_k, -1)  # [B, S, k]
        weights = weights / weights.sum(-1, keepdim=True)
        share = F.one_hot(chosen, self.experts).sum(2).float().mean(1)  # f: [B, E], no gradient
        balance = self.experts / self.top_k * (share * scores.mean(1)).sum(-1).mean()
        z = logits.logsumexp(-1).square().mean()
        y = DISPATCH[self.dispatch](self, x.reshape(b * s, d), weights.reshape(-1), chosen.reshape(-1))
        return y.view(b, s, d), balance, z

    def expert(self, e, x):
        return F.linear(self.swiglu(F.linear(x, self.gate_up[e])), self.down[e])


class SwiGlu(nn.Module):
    def forward(self, x):
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


# Three ways of running the experts. x: [T, D]; weights, chosen: [T * k] -> [T, D]


def sorted_rows(moe, chosen):
    order = chosen.argsort(stable=True)  # assignments sorted by expert
    return order, torch.bincount(chosen, minlength=moe.experts)


def unsort(moe, rows, order, weights):  # rows: [T * k, D], by expert
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    y = rows[place] * weights[:, None]
    return y.view(-1, moe.top_k, rows.shape[1]).sum(1)


def dispatch_loop(moe, x, weights, chosen):
    """Sorts the rows by expert, runs one expert after the other, and gathers the rows back."""
    order, counts = sorted_rows(moe, chosen)
    parts = x[order // moe.top_k].split(counts.tolist())
    return unsort(moe, torch.cat([moe.expert(e, p) for e, p in enumerate(parts)]), order, weights)


def dispatch_index_add(moe, x, weights, chosen):
    """Each expert selects its rows and adds its results to their tokens (as Hugging Face's Mixtral does)."""
    y = torch.zeros_like(x)
    for e in range(moe.experts):
        rows = (chosen == e).nonzero().squeeze(1)
        tokens = rows // moe.top_k
        y = y.index_add(0, tokens, (moe.expert(e, x[tokens]) * weights[rows, None]).to(y.dtype))
    return y


def dispatch_bmm(moe, x, weights, chosen):
    """Runs all experts in one batched product, with rows padded to the number of the busiest expert."""
    order, counts = sorted_rows(moe, chosen)
    begin = counts.cumsum(0) - counts
    expert = chosen[order]
    slot = expert * int(counts.max()) + torch.arange(order.numel()) - begin[expert]
    padded = x.new_zeros(moe.experts * int(counts.max()), x.shape[1]).index_copy(0, slot, x[order // moe.top_k])
    inner = moe.swiglu(torch.bmm(padded.view(moe.experts, -1, x.shape[1]), moe.gate_up.transpose(1, 2)))
    rows = torch.bmm(inner, moe.down.transpose(1, 2)).view(-1, x.shape[1])
    return unsort(moe, rows[slot], order, weights)


DISPATCH = {"loop": dispatch_loop, "index_add": dispatch_index_add, "bmm": dispatch_bmm}


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.attention_norm, self.attention = RmsNorm(o.d_model), Attention(o)
        self.ffn_norm, self.moe = RmsNorm(o.d_model), Moe(o)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y, balance, z = self.moe(self.ffn_norm(x))
        return x + y, balance, z


class Decoder(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embedding = nn.Embedding(o.vocab, o.d_model)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm, self.head = RmsNorm(o.d_model), nn.Linear(o.d_model, o.vocab, bias=False)
        half = o.d_model // o.heads // 2
        angle = torch.arange(o.seq_len)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos()[:, None])
        self.register_buffer("sin", angle.sin()[:, None])
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):  # [B, S] -> the loss
        x, extra = self.embedding(tokens), 0.0
        for block in self.blocks:
            x, balance, z = block(x, self.cos, self.sin)
            extra = extra + 0.01 * balance + 0.001 * z
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten()) + extra


class DenseBlock(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.attention_norm, self.attention = LayerNorm(o.d_model), Attention(o, rotates=False)
        self.ffn_norm, self.up = LayerNorm(o.d_model), nn.Linear(o.d_model, o.d_ff, bias=False)
        self.down = nn.Linear(o.d_ff, o.d_model, bias=False)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.ffn_norm(x))))


class DenseDecoder(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(o.vocab, o.d_model), nn.Embedding(o.seq_len, o.d_model)
        self.blocks = nn.Sequential(*(DenseBlock(o) for _ in range(o.layers)))
        self.norm = LayerNorm(o.d_model)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):  # [B, S] -> the loss
        x = self.blocks(self.embedding(tokens) + self.positions.weight[:tokens.shape[1]])
        return F.cross_entropy(F.linear(self.norm(x), self.embedding.weight).flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, o, compiled, bf16):
        torch.manual_seed(1)
        self.o, self.compiled, self.bf16 = o, compiled, bf16
        self.model = Decoder(o) if o.experts else DenseDecoder(o)
        if compiled and not o.experts:
            self.model.compile()
        elif compiled:
            # Only modules without a shape that the router decides. The whole model would break up
            # at every expert and recompile.
            for module in self.model.modules():
                if isinstance(module, (Attention, RmsNorm, SwiGlu)):
                    module.compile(dynamic=isinstance(module, SwiGlu))
        decay = [p for p in self.model.parameters() if p.dim() > 1]
        plain = [p for p in self.model.parameters() if p.dim() == 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
        settings = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
        try:
            self.optimizer = torch.optim.AdamW(groups, fused=True, **settings)
        except (RuntimeError, TypeError):  # before PyTorch 2.4 there is no fused AdamW on CPU
            self.optimizer = torch.optim.AdamW(groups, foreach=True, **settings)

    def step(self):
        ids = torch.randint(self.o.vocab, (self.o.batch, self.o.seq_len + 1))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            loss = self.model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def run(self, steps):
        started = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        seconds = time.perf_counter() - started
        tokens = steps * self.o.batch * self.o.seq_len
        return {"seconds": seconds, "steps": steps, "tokens_per_second": tokens / seconds, "loss": loss.item()}

    def about(self):
        return {"dispatch": self.o.dispatch, "compile": self.compiled, "bf16": self.bf16, "torch": torch.__version__,
                "threads": torch.get_num_threads(), "parameters": sum(p.numel() for p in self.model.parameters())}


def best_trainer(o):
    """Returns the fastest setting. Each has two steps to warm up; its best of three steps counts."""
    names = ["none"] if not o.experts else list(DISPATCH) if o.dispatch == "auto" else [o.dispatch]
    settings = [(name, compiled, bf16) for name in names for compiled in ([False, True] if o.compile else [False])
                for bf16 in ([False, True] if o.bf16 else [False])]
    best = None
    for name, compiled, bf16 in settings:
        what = f"{name}, compile {compiled}, bf16 {bf16}"
        try:
            trainer = Trainer(argparse.Namespace(**{**vars(o), "dispatch": name}), compiled, bf16)
            trainer.run(2)
            seconds = min(trainer.run(1)["seconds"] for _ in range(3))
        except Exception as error:  # torch.compile does not work everywhere
            print(f"pytorch_step.py: {what}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        print(f"pytorch_step.py: {what}: {o.batch * o.seq_len / seconds:.0f} tokens/s", file=sys.stderr)
        if best is None or seconds < best[0]:
            best = seconds, trainer
    if best is None:
        sys.exit("pytorch_step.py: no setting works")
    return best[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, value in dict(d_model=256, layers=4, heads=8, kv_heads=0, experts=8, top_k=2, d_ff=0, vocab=257,
                            seq_len=256, batch=8, threads=0, steps=10).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--dispatch", choices=["auto", *DISPATCH], default="auto")
    parser.add_argument("--compile", type=int, default=0, help="1: try torch.compile too (half a minute; gains some 4 %%)")
    parser.add_argument("--bf16", type=int, default=0, help="1: try autocast to bf16 too")
    parser.add_argument("--serve", action="store_true", help="take turns: see the protocol above")
    o = parser.parse_args()
    o.kv_heads = o.kv_heads or o.heads
    o.d_ff = o.d_ff or ((o.d_model * 8 // 3 + 63) // 64 * 64 if o.experts else 4 * o.d_model)  # 8/3 d_model rounded up to 64
    torch.set_num_threads(o.threads or len(os.sched_getaffinity(0)))

    trainer = best_trainer(o)
    if not o.serve:
        print(json.dumps({**trainer.run(o.steps), **trainer.about()}))
        return
    print(json.dumps({"ready": True, **trainer.about()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(trainer.run(int(line))), flush=True)


if __name__ == "__main__":
    main()
