"""Faults planted in single-cell models of scvi-tools."""

from __future__ import annotations

from typing import Any

import torch

from tests.evidence.exam.cases import Built, fault
from tests.evidence.exam.counts import cells, planned, scvi_model
from tests.evidence.exam.expectations import RATE, expecting


@fault("scvi", "scVI at a learning rate of 0.1")
def scvi_rate_too_high(planted: bool = True) -> Built:
    from scvi.train import TrainingPlan

    return expecting(planned(scvi_model(), TrainingPlan, n_epochs_kl_warmup=2, lr=0.1 if planted else 1e-3), *RATE)


@fault(
    "scvi",
    "a weight of 1000 on the divergence: the posterior collapses",
    missed="the means shrink to a third in this fit; a healthy annealing may do as much",
)
def scvi_posterior_collapse(planted: bool = True) -> Built:
    from scvi.train import TrainingPlan

    weight = 1000.0 if planted else 1.0
    options = {"n_epochs_kl_warmup": None, "min_kl_weight": weight, "max_kl_weight": weight, "lr": 5e-3}
    built = planned(scvi_model(), TrainingPlan, **options)
    return expecting(built, "representation_collapse", sites=("module.z_encoder*", "module.decoder*"))


@fault("scvi", "counts without a logarithm into a net without batch norm")
def scvi_raw_counts(planted: bool = True) -> Built:
    from scvi.train import TrainingPlan

    data = cells(scale=4.0) if planted else cells()
    built = planned(scvi_model(data, log_variational=not planted, use_batch_norm="none"), TrainingPlan, n_epochs_kl_warmup=2)
    return expecting(built, "exploding", "nonfinite", "loss_nonfinite", "dead", "spike", "saturated")


@fault("scvi", "a dropout of 0.99 in the encoder")
def scvi_dropout(planted: bool = True) -> Built:
    from scvi.train import TrainingPlan

    built = planned(scvi_model(dropout_rate=0.99 if planted else 0.1), TrainingPlan, n_epochs_kl_warmup=2)
    return expecting(built, "settings", sites=("module.z_encoder*",))


@fault("scvi", "all cells are the same")
def scvi_same_cells(planted: bool = True) -> Built:
    from scvi.train import TrainingPlan

    data: Any = cells()
    data.X = data.X * 0 + 1 if planted else data.X
    return expecting(planned(scvi_model(data), TrainingPlan, n_epochs_kl_warmup=2), "constant")


@fault("scvi", "weight decay of 30, decoupled")
def scvi_decay(planted: bool = True) -> Built:
    from scvi.train import TrainingPlan

    creator = lambda parameters: torch.optim.AdamW(parameters, 1e-3, weight_decay=30.0 if planted else 1e-4)  # noqa: E731
    built = planned(scvi_model(), TrainingPlan, n_epochs_kl_warmup=2, optimizer="Custom", optimizer_creator=creator)
    return expecting(built, "update_too_large")


@fault("scvi", "conditional scVI whose decoder was frozen with its encoder's copy")
def scvi_decoder_frozen(planted: bool = True) -> Built:
    from scvi.model import CondSCVI
    from scvi.train import TrainingPlan

    data = cells()
    CondSCVI.setup_anndata(data, labels_key="type")
    model = CondSCVI(data, n_hidden=48, n_latent=4)
    model.module.decoder.requires_grad_(not planted)
    built = planned(model, TrainingPlan, n_epochs_kl_warmup=2, lr=5e-3)
    return expecting(built, "not_optimized", "not_updated", "frozen_statistics", sites=("module.decoder*",))


@fault("scvi", "totalVI, counts and proteins: AdamW at 4e-3 with a decay of 8", learned_from=False)
def totalvi_decay(planted: bool = True) -> Built:
    from scvi.model import TOTALVI
    from scvi.train import TrainingPlan

    data: Any = cells()
    data.obsm["proteins"] = data.X[:, ::8].copy()
    TOTALVI.setup_anndata(data, protein_expression_obsm_key="proteins", batch_key="batch")
    model = TOTALVI(data, n_latent=6, n_hidden=48, empirical_protein_background_prior=False)
    creator = lambda parameters: torch.optim.AdamW(parameters, 4e-3, weight_decay=8.0 if planted else 1e-3)  # noqa: E731
    built = planned(model, TrainingPlan, n_epochs_kl_warmup=None, optimizer="Custom", optimizer_creator=creator)
    return expecting(built, "update_too_large")
