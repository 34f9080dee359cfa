"""Counts for single-cell models: a cell is a picture of a digit, a gene a pixel; and scvi-tools' own models and plans."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from tests.evidence.exam.cases import Built, Expected
from tests.evidence.exam.schedules import TWICE_25


def cells(number: int = 1000, scale: float = 4.0, log: bool = False) -> object:
    """Annotated counts, Poisson around the brightness of pixels that are not always black; two batches, ten types."""
    import anndata

    x, y = load_digits(return_X_y=True)
    chosen = x[:, x.mean(0) > 0.5][:number]
    random = np.random.default_rng(0)
    counts = random.poisson(chosen * scale * random.gamma(4, 0.25, (len(chosen), 1))).astype(np.float32)
    counts[:, 0] += 1  # no cell without counts
    data = anndata.AnnData(np.log1p(counts) if log else counts)
    data.obs["batch"] = [str(index % 2) for index in range(len(chosen))]
    data.obs["type"] = [str(shown) if index % 3 else "unknown" for index, shown in enumerate(y[:number])]
    return data


def planned(model: Any, plan: type[Any], batch_size: int = 40, limits: dict[str, Any] | None = None, **options: Any) -> Built:
    """A model in its training plan, as its ``train`` puts it, for two epochs of 25 batches."""
    from scvi.dataloaders import AnnDataLoader

    manager = model.adata_manager
    loader = AnnDataLoader(manager, batch_size=batch_size, shuffle=True, drop_last=True)
    return Built(plan(model.module, **options), {"train_dataloaders": loader}, {**TWICE_25, **(limits or {})}, Expected())


def scvi_model(data: Any = None, **options: Any) -> Any:
    from scvi.model import SCVI

    data = cells() if data is None else data
    SCVI.setup_anndata(data, batch_key="batch")
    return SCVI(data, **{"n_hidden": 48, "n_latent": 6, **options})
