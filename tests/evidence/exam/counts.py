"""Counts for single-cell models: a cell is a picture of a digit, a gene a pixel."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits


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
