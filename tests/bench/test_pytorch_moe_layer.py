#!/usr/bin/env python3
"""Tests that Layer computes the same function, with the same gradients, as a plain layer.

Exit code 3: this Python has no PyTorch.
"""

import types

from pytorch_moe_layer import PRODUCTS, Layer, swiglu  # exits with 3 without PyTorch
import torch
import torch.nn.functional as F


def plain(layer):
    """Every expert computes every token, with weight zero if it was not chosen."""
    scores = F.linear(layer.x, layer.router).float().softmax(-1)
    kept = scores * torch.zeros_like(scores).scatter(1, scores.topk(layer.top_k, -1).indices, 1)
    weights = (kept / kept.sum(-1, keepdim=True)).to(layer.x.dtype)
    hidden = swiglu(torch.einsum("td,end->ten", layer.x, layer.up))
    return torch.einsum("tef,edf,te->td", hidden, layer.down, weights)


def results(layer, forward):
    for leaf in layer.leaves:
        leaf.grad = None
    y = forward()
    y.backward(layer.dy)
    return [y.detach()] + [leaf.grad for leaf in layer.leaves]


# Fewer assignments than experts, so that some have no row; one choice and several; widths that are
# multiples of 8, but not of 16.
for tokens, experts, top_k in (5, 16, 2), (97, 8, 3), (33, 4, 1), (1, 2, 2):
    options = types.SimpleNamespace(tokens=tokens, experts=experts, top_k=top_k, d_model=24, d_ff=40)
    layer = Layer(options, "cpu", torch.float32)
    layer.router.data *= 50  # makes the weights of the experts differ
    expected = results(layer, lambda: plain(layer))
    for product in PRODUCTS:
        layer.choose(product, False)
        for name, got, want in zip(("y", "router", "up", "down", "x"), results(layer, layer.forward), expected):
            torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4,
                                       msg=lambda text: f"{product.__name__}, {tokens} tokens, {name}: {text}")
print("the same with", ", ".join(product.__name__ for product in PRODUCTS))
