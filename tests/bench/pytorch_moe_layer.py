#!/usr/bin/env python3
"""One mixture-of-experts layer in PyTorch, forward and backward: what tests/bench/gpu measures ours against.

It is the layer of Switchyard: a linear router, the top k of a softmax, renormalised; dropless; SwiGLU
experts; tokens sorted by expert and gathered back. On a GPU, everything but the router's scores is
bf16, and CUDA events measure the time. On a CPU, everything is f32. Gradients of the input and of all
weights are computed in the type of the weights, into fresh memory. Training would add them to older
ones over micro-batches, which would take time that is not measured here. The load-balancing losses
are left out, too.

A user runs it alone and reads one JSON line:

    python3 tests/bench/pytorch_moe_layer.py --repeat 20

bench_gpu runs it with --serve and takes turns with it; the protocol is that of pytorch_step.py. It
times every way of running the experts that this PyTorch has, eager and compiled. It prints the times
on standard error and keeps the fastest way. Exit code 3: this Python has no PyTorch, or it has no GPU
although --cuda requests one.
"""

import argparse
import itertools
import json
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"pytorch_moe_layer.py: no PyTorch here: {error}", file=sys.stderr)
    sys.exit(3)


def swiglu(h):  # [R, 2 F] -> [R, F]
    gate, up = h.chunk(2, -1)
    return F.silu(gate) * up


def weighted_sum(rows, weights):  # [T, k, D], [T, k] -> [T, D]
    return (rows * weights[..., None]).sum(1)


class Select(torch.autograd.Function):
    """Rows of x by index, each of them equally often. Row i of x is in rows copies[i] of the result.

    Backward of index_select sums the copies of a row with atomics. With known positions it can gather
    them instead.
    """

    @staticmethod
    def forward(ctx, x, index, copies):  # [R, D], [R c], [R, c] -> [R c, D]
        ctx.save_for_backward(copies)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx, dy):
        copies, = ctx.saved_tensors
        dx = dy.index_select(0, copies.flatten())
        return (dx if copies.shape[1] == 1 else dx.view(*copies.shape, -1).sum(1)), None, None


# Ways of multiplying rows by the matrix of their expert.
# x: [R, Q], sorted by expert; w: [E, N, Q]; counts: [E] -> [R, N]


# Older versions have it under the second name.
grouped_mm = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def grouped(x, w, counts):
    """All experts in one launch; the counts stay on the device."""
    return grouped_mm(x, w.transpose(1, 2), offs=counts.cumsum(0, dtype=torch.int32))


def loop(x, w, counts):
    """One expert after the other; the host waits for the counts."""
    return torch.cat([F.linear(part, matrix) for part, matrix in zip(x.split(counts.tolist()), w)])


PRODUCTS = [grouped, loop] if grouped_mm else [loop]


class Layer:
    def __init__(self, o, device, dtype):
        torch.manual_seed(1)
        self.experts, self.top_k = o.experts, o.top_k
        self.cuda = device == "cuda"

        def normal(*shape, deviation=0.02):
            return (torch.randn(shape, device=device, dtype=dtype) * deviation).requires_grad_()

        self.router = normal(o.experts, o.d_model)
        self.up, self.down = normal(o.experts, 2 * o.d_ff, o.d_model), normal(o.experts, o.d_model, o.d_ff)
        self.x = normal(o.tokens, o.d_model, deviation=1)
        self.dy = torch.randn(o.tokens, o.d_model, device=device, dtype=dtype)
        self.leaves = [self.router, self.up, self.down, self.x]
        self.all_experts = torch.arange(o.experts, device=device)[:, None]

    def choose(self, product, compiled):
        self.product, self.compiled = product, compiled
        self.activate, self.combine = ((torch.compile(f) for f in (swiglu, weighted_sum)) if compiled
                                       else (swiglu, weighted_sum))

    def forward(self):
        x = self.x
        scores = F.linear(x, self.router).float().softmax(-1)
        weights, chosen = scores.topk(self.top_k, -1)  # [T, k]
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        order = chosen.flatten().argsort(stable=True)  # assignments sorted by expert
        counts = (chosen.flatten() == self.all_experts).sum(1)  # the host would wait for bincount
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel(), device=order.device)
        rows = Select.apply(x, order // self.top_k, place.view_as(chosen))
        rows = self.product(self.activate(self.product(rows, self.up, counts)), self.down, counts)
        return self.combine(Select.apply(rows, place, order[:, None]).view(*chosen.shape, -1), weights)

    def step(self):
        self.forward().backward(self.dy)
        for leaf in self.leaves:
            leaf.grad = None

    def run(self, n):
        """Seconds of n forward and backward passes."""
        if not self.cuda:
            started = time.perf_counter()
            for _ in range(n):
                self.step()
            return time.perf_counter() - started
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        started.record()
        for _ in range(n):
            self.step()
        ended.record()
        torch.cuda.synchronize()
        return started.elapsed_time(ended) / 1e3

    def choose_fastest(self):
        """Chooses the fastest way: the best of three turns of three passes, after three to warm up."""
        best = None
        for product, compiled in itertools.product(PRODUCTS, (False, True)):
            try:
                self.choose(product, compiled)
                self.run(3)
                seconds = min(self.run(3) for _ in range(3)) / 3
            except Exception as error:  # some ways do not work everywhere
                print(f"pytorch_moe_layer.py: {product.__name__}, compiled {compiled}: {type(error).__name__}: {error}",
                      file=sys.stderr)
                continue
            print(f"pytorch_moe_layer.py: {product.__name__}, compiled {compiled}: {seconds * 1e3:.3f} ms",
                  file=sys.stderr)
            if best is None or seconds < best[0]:
                best = seconds, product, compiled
        if best is None:
            sys.exit("pytorch_moe_layer.py: no way of running the experts works")
        self.choose(*best[1:])
        self.run(1)

    def about(self):
        return {"product": self.product.__name__, "compiled": self.compiled, "torch": torch.__version__,
                "dtype": str(self.x.dtype).removeprefix("torch.")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, value in dict(d_model=4096, d_ff=14336, experts=8, top_k=2, tokens=8192,
                            cuda=int(torch.cuda.is_available()), repeat=20).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--serve", action="store_true", help="take turns: see the protocol of pytorch_step.py")
    o = parser.parse_args()
    if o.cuda and not torch.cuda.is_available():
        print("pytorch_moe_layer.py: this PyTorch has no GPU", file=sys.stderr)
        sys.exit(3)

    layer = Layer(o, "cuda" if o.cuda else "cpu", torch.bfloat16 if o.cuda else torch.float32)
    layer.choose_fastest()
    if not o.serve:
        print(json.dumps({"seconds": layer.run(o.repeat) / o.repeat, **layer.about()}))
        return
    print(json.dumps({"ready": True, **layer.about()}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": layer.run(int(line))}), flush=True)


if __name__ == "__main__":
    main()
