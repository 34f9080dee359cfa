"""What a run's record says of each layer."""

from __future__ import annotations

import torch
from torch import nn

from lightning_hooks.session.run_record import layers
from tests.support.torch_modules import CASES, reads_draw


class Talkative(nn.Linear):
    """Its own words are not asked for: they may be computed."""

    def extra_repr(self) -> str:
        raise AssertionError


class Shorn(nn.Linear):
    """Lacks what its base says."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        del self.in_features


def details(*modules: nn.Module) -> list[str]:
    return layers(nn.Sequential(*modules))["detail"]


def test_torch_s_words_for_a_layer() -> None:
    others = "Container", "NLLLoss2d", "ParameterList", "ParameterDict"
    built = [case.build() for name, case in CASES.items() if name not in others]
    leaves = [module for module in built if not list(module.children())]
    assert len(leaves) > 130
    assert details(*leaves) == [module.extra_repr()[:90] for module in leaves]


def test_words_that_would_be_computed() -> None:
    leaves = reads_draw(nn.Linear(2, 3)), Talkative(2, 2), Shorn()
    before = torch.get_rng_state()
    assert details(*leaves) == ["in_features=2, out_features=3, bias=True", "", ""]
    assert torch.equal(torch.get_rng_state(), before)
