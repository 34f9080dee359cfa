"""Single-cell models of scvi-tools."""

from __future__ import annotations

from typing import Any

from tests.evidence.exam.cases import Built, Expected, healthy
from tests.evidence.exam.counts import cells, planned, scvi_model
from tests.evidence.exam.schedules import TWICE_25


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
    return Built(plan, {"train_dataloaders": loader}, TWICE_25, Expected())


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


@healthy("scvi", "SysVI: a mixture of posteriors of pseudo-inputs is the prior, cycles between batches are in the loss")
def scvi_sysvi() -> Built:
    from scvi.external import SysVI
    from scvi.train import TrainingPlan

    data = cells(log=True)
    SysVI.setup_anndata(data, batch_key="batch")
    model = SysVI(data, n_latent=8, n_hidden=48, n_layers=2)
    return planned(model, TrainingPlan)


@healthy("scvi", "scAR: what ambient noise adds to counts, a binomial likelihood, the library's own plan")
def scvi_ambient() -> Built:
    from scvi.external import SCAR
    from scvi.train import TrainingPlan

    data = cells()
    SCAR.setup_anndata(data)
    return planned(SCAR(data, n_hidden=48, n_latent=8), TrainingPlan)


@healthy("scvi", "AUTOZI: which genes have too many zeros")
def scvi_autozi() -> Built:
    from scvi.model import AUTOZI
    from scvi.train import TrainingPlan

    data = cells()
    AUTOZI.setup_anndata(data, batch_key="batch")
    return planned(AUTOZI(data, n_hidden=48, n_latent=6), TrainingPlan, n_epochs_kl_warmup=2, lr=2e-3)


@healthy("scvi", "PoissonVI")
def scvi_poisson() -> Built:
    from scvi.external import POISSONVI
    from scvi.train import TrainingPlan

    data = cells()
    POISSONVI.setup_anndata(data, batch_key="batch")
    return planned(POISSONVI(data, n_hidden=32, n_latent=6), TrainingPlan, n_epochs_kl_warmup=2, lr=2e-3)


@healthy("scvi", "conditional scVI: a code for each type of cell")
def scvi_conditional() -> Built:
    from scvi.model import CondSCVI
    from scvi.train import TrainingPlan

    data = cells()
    CondSCVI.setup_anndata(data, labels_key="type")
    return planned(CondSCVI(data, n_hidden=48, n_latent=4), TrainingPlan, n_epochs_kl_warmup=2)


@healthy("scvi", "Stereoscope: the profile of each type of cell from counts, no net, a negative binomial, Adam at 0.01")
def scvi_stereoscope() -> Built:
    from scvi.external import RNAStereoscope
    from scvi.train import TrainingPlan

    data: Any = cells()
    RNAStereoscope.setup_anndata(data, labels_key="type")
    return planned(RNAStereoscope(data), TrainingPlan, lr=0.01)
