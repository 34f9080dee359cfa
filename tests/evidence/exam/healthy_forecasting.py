"""Healthy trainings of pytorch-forecasting's models, which are Lightning modules themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes

from tests.evidence.exam.cases import Built, Expected, healthy

EPOCHS = {"max_epochs": 2, "limit_train_batches": 30, "gradient_clip_val": 0.1}


def series(past: int = 20, ahead: int = 5) -> Any:
    """Measurements of a clinic, in the order of the patients, as four series of 110."""
    import pandas
    from pytorch_forecasting import TimeSeriesDataSet

    values = load_diabetes().data[:440, 2].astype(np.float32).reshape(4, 110).cumsum(1)
    rows = [{"time": time, "series": str(name), "value": v} for name, row in enumerate(values) for time, v in enumerate(row)]
    columns: dict[str, Any] = {"group_ids": ["series"], "target": "value", "time_idx": "time"}
    lengths = {"max_encoder_length": past, "min_encoder_length": past, "max_prediction_length": ahead}
    return TimeSeriesDataSet(pandas.DataFrame(rows), **columns, **lengths, time_varying_unknown_reals=["value"])


def trained(model: type[Any], **options: Any) -> Built:
    """The library's model, made for the series; for two epochs."""
    data = series()
    loader = data.to_dataloader(train=True, batch_size=32, num_workers=0)
    return Built(model.from_dataset(data, log_interval=-1, **options), {"train_dataloaders": loader}, EPOCHS, Expected())


@healthy("pytorch_forecasting", "N-BEATS, clipped at 0.1")
def forecasting_nbeats() -> Built:
    from pytorch_forecasting import NBeats

    return trained(NBeats, learning_rate=1e-3, widths=[32, 64], backcast_loss_ratio=0.1, num_block_layers=[2, 2])


@healthy("pytorch_forecasting", "temporal fusion transformer, quantiles, clipped at 0.1")
def forecasting_tft() -> Built:
    from pytorch_forecasting import QuantileLoss, TemporalFusionTransformer

    sizes = {"hidden_size": 16, "attention_head_size": 2, "hidden_continuous_size": 8}
    return trained(TemporalFusionTransformer, learning_rate=0.01, **sizes, dropout=0.1, loss=QuantileLoss())
