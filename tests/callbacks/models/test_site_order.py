"""Reports follow the order of first calls, not of registration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks import monitors
from tests.support.models import Classifier, loader, trainer


class Mlp(nn.Module):
    """As in GPT-2, the activation is registered last and called in between."""

    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj, self.act = nn.Linear(8, 16), nn.Linear(16, 3), nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


def fitted(**kwargs: Any) -> list[Any]:
    torch.manual_seed(0)
    ours = monitors(every_n_steps=2, summary=False, **kwargs)
    trainer(list(ours)).fit(Classifier(Mlp()), loader())
    return [monitor.report for monitor in ours]


def test_sites_and_parameters_come_in_the_order_of_first_call() -> None:
    features, flow, _ = fitted()
    modules = ["net.c_fc", "net.act", "net.c_proj"]
    assert [*features.sites] == [*features.order] == [*flow.modules] == modules
    assert [*flow.order] == modules[::-1]  # as gradients arrive
    assert [*flow.parameters] == [*("net.c_fc.weight", "net.c_fc.bias", "net.act.weight", "net.c_proj.weight", "net.c_proj.bias")]


def test_a_module_of_a_container_that_is_no_site_keeps_its_parameters_together() -> None:
    flow = fitted(modules=["net.act"])[1]
    assert [*flow.modules] == ["net.act"]
    assert sorted(flow.parameters) == sorted(name for name, _ in Classifier(Mlp()).named_parameters())
