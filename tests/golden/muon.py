"""Makes muon.json: weights after updates by torch.optim.Muon, computed in double precision.

Needs torch and numpy: python3 muon.py > muon.json
"""

import json
from unittest import mock

import torch
from torch.optim import _muon

from values import values

LR, DECAY, MOMENTUM, STEPS = 0.02, 0.1, 0.95, 3


def numbers(x):
    return [float(f"{value:.9g}") for value in x.flatten().tolist()]


def case(rows, columns):
    name = f"{rows} x {columns}"
    w = torch.nn.Parameter(values("w " + name, [rows, columns]).double())
    optimizer = torch.optim.Muon([w], lr=LR, weight_decay=DECAY, momentum=MOMENTUM, nesterov=True,
                                 adjust_lr_fn="match_rms_adamw")
    result = {"rows": rows, "columns": columns}
    # torch orthogonalises in bf16.
    with mock.patch.object(torch, "bfloat16", torch.float64):
        x = values("x " + name, [rows, columns]).double()
        result["orthogonal"] = numbers(_muon._zeropower_via_newtonschulz(
            x, (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C), _muon.DEFAULT_NS_STEPS, _muon.EPS))
        for step in range(1, STEPS + 1):
            w.grad = values(f"g{step} " + name, [rows, columns]).double()
            optimizer.step()
    result["weights"] = numbers(w.detach())
    return result


shapes = [(1, 1), (3, 3), (2, 9), (9, 2), (1, 7), (5, 8)]
print(json.dumps({"lr": LR, "decay": DECAY, "momentum": MOMENTUM, "steps": STEPS}).rstrip("}") + ', "cases": [')
print(",\n".join(json.dumps(case(*shape)) for shape in shapes) + "\n]}")
