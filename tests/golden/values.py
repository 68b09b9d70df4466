"""Numbers for golden data, which both sides compute from names (tests/src/golden_values.h)."""

import numpy as np
import torch


def values(name, shape, around_one=False):
    """Returns the tensor of this name in f32: elements in [-0.5, 0.5), or in [0.5, 1.5) if around_one."""
    h = 0
    for c in name:
        h = (h * 31 + ord(c)) % 65521
    n = int(np.prod(shape, dtype=np.int64))
    x = (np.arange(1, n + 1, dtype=np.uint64) * 2654435761 + h * 40503) % 2**32
    x ^= x >> np.uint64(15)
    x = x * 2246822519 % 2**32
    x ^= x >> np.uint64(13)
    return torch.tensor((x / 2**32 - 0.5 + (1 if around_one else 0)).astype(np.float32)).reshape(shape)
