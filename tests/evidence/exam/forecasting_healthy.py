"""Forecasts by pytorch_forecasting's models, and a Bayesian regression by Pyro."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from sklearn.datasets import load_diabetes
from torch import Tensor

from tests.evidence.exam.cases import Built, Expected, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import in_batches

SHORT_AND_CLIPPED = {"max_epochs": 2, "limit_train_batches": 30, "gradient_clip_val": 0.1}


def series(past: int = 20, ahead: int = 5) -> Any:
    """Measurements of a clinic, in the order of the patients, as four series of 110."""
    import pandas
    from pytorch_forecasting import TimeSeriesDataSet

    values = load_diabetes().data[:440, 2].astype(np.float32).reshape(4, 110).cumsum(1)
    rows = [{"time": time, "series": str(name), "value": v} for name, row in enumerate(values) for time, v in enumerate(row)]
    columns: dict[str, Any] = {"group_ids": ["series"], "target": "value", "time_idx": "time"}
    lengths = {"max_encoder_length": past, "min_encoder_length": past, "max_prediction_length": ahead}
    return TimeSeriesDataSet(pandas.DataFrame(rows), **columns, **lengths, time_varying_unknown_reals=["value"])


def forecasting(model: type[Any], **options: Any) -> Built:
    """The library's model, made for the series; for two epochs."""
    data = series()
    loader = data.to_dataloader(train=True, batch_size=32, num_workers=0)
    return Built(model.from_dataset(data, log_interval=-1, **options), {"train_dataloaders": loader}, SHORT_AND_CLIPPED, Expected())


@healthy("pytorch_forecasting", "N-BEATS, clipped at 0.1")
def forecasting_nbeats() -> Built:
    from pytorch_forecasting import NBeats

    return forecasting(NBeats, learning_rate=1e-3, widths=[32, 64], backcast_loss_ratio=0.1, num_block_layers=[2, 2])


@healthy("pytorch_forecasting", "temporal fusion transformer, quantiles, clipped at 0.1")
def forecasting_tft() -> Built:
    from pytorch_forecasting import QuantileLoss, TemporalFusionTransformer

    sizes = {"hidden_size": 16, "attention_head_size": 2, "hidden_continuous_size": 8}
    return forecasting(TemporalFusionTransformer, learning_rate=0.01, **sizes, dropout=0.1, loss=QuantileLoss())


@healthy("pytorch_forecasting", "TiDE: dense encoder and decoder with a linear skip from the past, clipped at 0.1")
def forecasting_tide() -> Built:
    from pytorch_forecasting.models.tide import TiDEModel

    return forecasting(TiDEModel, learning_rate=5e-3, hidden_size=32, decoder_output_dim=8, temporal_decoder_hidden=16)


@healthy("pytorch_forecasting", "N-BEATS whose layers are Kolmogorov-Arnold nets, clipped at 0.1")
def forecasting_nbeats_kan() -> Built:
    from pytorch_forecasting import NBeatsKAN

    return forecasting(NBeatsKAN, learning_rate=5e-3, widths=[16, 32], backcast_loss_ratio=0.1, num_block_layers=[2, 2])


class Variational(LightningModule):
    """Pyro's example for Lightning: the evidence's lower bound as a module."""

    def __init__(self, model: Any, guide: Any, first: Any) -> None:
        import pyro

        super().__init__()
        self.bound = pyro.infer.Trace_ELBO()(model, guide)
        self.bound(*first)  # makes the guide's parameters

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.bound(*batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.bound.parameters(), 0.02)


@healthy(
    "pyro", "a Bayesian regression by Pyro: the guide's means and widths learn, the bound is a sum that begins in the hundreds"
)
def pyro_regression() -> Built:
    import pyro
    from pyro import distributions as dist
    from pyro.infer.autoguide import AutoNormal

    x, y = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    x, y = x / x.std(0), (y - y.mean()) / y.std()

    def model(x: Tensor, y: Tensor) -> None:
        slopes = pyro.sample("slopes", dist.Normal(0.0, 1.0).expand([10]).to_event(1))
        level, width = pyro.sample("level", dist.Normal(0.0, 2.0)), pyro.sample("width", dist.LogNormal(0.0, 1.0))
        with pyro.plate("rows", 442, subsample_size=len(x)):
            pyro.sample("seen", dist.Normal(level + x @ slopes, width), obs=y)

    pyro.clear_param_store()
    module = Variational(model, AutoNormal(model, init_scale=0.1), (x[:32], y[:32]))
    return Built(module, in_batches(32, x, y), {"max_epochs": 8}, WELL)


@healthy("pytorch_forecasting", "N-HiTS")
def forecasting_nhits() -> Built:
    from pytorch_forecasting import NHiTS

    return forecasting(NHiTS, learning_rate=3e-3, hidden_size=32)


@healthy("pytorch_forecasting", "DeepAR: an LSTM and a normal distribution")
def forecasting_deepar() -> Built:
    from pytorch_forecasting import DeepAR
    from pytorch_forecasting.metrics import NormalDistributionLoss

    return forecasting(DeepAR, learning_rate=1e-2, hidden_size=24, rnn_layers=2, dropout=0.1, loss=NormalDistributionLoss())


@healthy(
    "pytorch_forecasting",
    "a GRU of two layers that forecasts, mean absolute error over the scale, clipped at 0.1",
    learned_from=False,
)
def forecasting_recurrent() -> Built:
    from pytorch_forecasting import MASE, RecurrentNetwork

    return forecasting(
        RecurrentNetwork, learning_rate=0.01, cell_type="GRU", hidden_size=24, rnn_layers=2, dropout=0.1, loss=MASE()
    )
