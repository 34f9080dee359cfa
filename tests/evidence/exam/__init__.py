"""The exam: models and recipes of libraries that people use, at tiny sizes; healthy, and with faults planted."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

_operators: Any = None
if find_spec("torchvision") is not None:
    # torchvision without its compiled operators, as it is installed beside a torch for CPUs: it only wants to see them defined.
    _operators = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, _name):
            _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
