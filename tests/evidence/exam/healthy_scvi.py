"""Healthy trainings of scvi-tools' models, by their own training plans."""

from __future__ import annotations

from typing import Any

from tests.evidence.exam.cases import Built, Expected, healthy
from tests.evidence.exam.counts import cells

EPOCHS = {"max_epochs": 2, "limit_train_batches": 25}


def planned(model: Any, plan: type[Any], batch_size: int = 40, limits: dict[str, Any] | None = None, **options: Any) -> Built:
    """A model in its training plan, as its ``train`` puts it, for two epochs of 25 batches."""
    from scvi.dataloaders import AnnDataLoader

    manager = model.adata_manager
    loader = AnnDataLoader(manager, batch_size=batch_size, shuffle=True, drop_last=True)
    return Built(plan(model.module, **options), {"train_dataloaders": loader}, {**EPOCHS, **(limits or {})}, Expected())


def scvi_model(data: Any = None, **options: Any) -> Any:
    from scvi.model import SCVI

    data = cells() if data is None else data
    SCVI.setup_anndata(data, batch_key="batch")
    return SCVI(data, **{"n_hidden": 48, "n_latent": 6, **options})


@healthy("scvi", "scVI, its own plan and settings")
def scvi_scvi() -> Built:
    from scvi.train import TrainingPlan

    return planned(scvi_model(), TrainingPlan, n_epochs_kl_warmup=2)


@healthy("scvi", "scVI with a negative binomial, two layers, dispersion by batch, clipping")
def scvi_negative_binomial() -> Built:
    from scvi.train import TrainingPlan

    model = scvi_model(gene_likelihood="nb", n_layers=2, dispersion="gene-batch")
    return planned(model, TrainingPlan, 40, {"gradient_clip_val": 10.0}, n_epochs_kl_warmup=20, lr=2e-3)


@healthy("scvi", "scANVI: labels of a part of the cells")
def scvi_scanvi() -> Built:
    from scvi.dataloaders import SemiSupervisedDataLoader
    from scvi.model import SCANVI
    from scvi.train import SemiSupervisedTrainingPlan

    data = cells()
    SCANVI.setup_anndata(data, labels_key="type", unlabeled_category="unknown", batch_key="batch")
    model = SCANVI(data, n_hidden=48, n_latent=6)
    plan = SemiSupervisedTrainingPlan(model.module, model.n_labels, n_epochs_kl_warmup=2)
    loader = SemiSupervisedDataLoader(model.adata_manager, batch_size=40, shuffle=True, drop_last=True)
    return Built(plan, {"train_dataloaders": loader}, EPOCHS, Expected())


@healthy("scvi", "linear scVI, whose decoder is a factor model")
def scvi_linear() -> Built:
    from scvi.model import LinearSCVI
    from scvi.train import TrainingPlan

    data = cells()
    LinearSCVI.setup_anndata(data, batch_key="batch")
    return planned(LinearSCVI(data, n_hidden=48, n_latent=6), TrainingPlan, n_epochs_kl_warmup=2, lr=5e-3)


@healthy("scvi", "PeakVI on which pixels are bright")
def scvi_peaks() -> Built:
    from scvi.model import PEAKVI
    from scvi.train import TrainingPlan

    data: Any = cells()
    data.X = (data.X > 16).astype("float32")
    PEAKVI.setup_anndata(data, batch_key="batch")
    model = PEAKVI(data, n_hidden=32, n_latent=6)
    return planned(model, TrainingPlan, lr=1e-3, weight_decay=1e-3, n_steps_kl_warmup=25)
