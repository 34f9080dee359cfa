"""InputNormalizer in fit, evaluation, checkpoints, and alone."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import InputNormalizer
from tests.support.interruptions import Batches, SaveAt
from tests.support.models import Classifier, hook_counts, loader, mlp, trainer
from tests.support.reference import same_state


class Predicts(Classifier):
    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch[0])

    test_step = Classifier.validation_step


class Inputs(Callback):
    """Keeps what a module really gets."""

    def __init__(self, name: str = "net.0") -> None:
        self.name, self.train, self.other = name, [], []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            (self.train if trainer.training else self.other).append(args[0].detach().clone())

        self.handle = pl_module.get_submodule(self.name).register_forward_hook(keep)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.handle.remove()


def data(shift: float = 5.0, n: int = 50, **kwargs: Any) -> DataLoader[Any]:
    """Affected-scaled inputs."""
    found = loader(n=n, **kwargs)
    x, y = found.dataset.tensors
    found.dataset.tensors = (x * torch.arange(1, 9) + shift, y)
    return found


def everything(found: DataLoader[Any]) -> Tensor:
    return found.dataset.tensors[0].double()


def test_given_numbers_train_as_normalised_data_do() -> None:
    mean, std = [5.0] * 8, [float(i) for i in range(1, 9)]
    torch.manual_seed(0)
    model = Classifier(mlp())
    trainer([InputNormalizer(modules="net", mean=mean, std=std)], max_epochs=2).fit(model, data(), data())
    normal = data()
    normal.dataset.tensors = ((normal.dataset.tensors[0] - torch.tensor(mean)) / torch.tensor(std), normal.dataset.tensors[1])
    torch.manual_seed(0)
    plain = Classifier(mlp())
    trainer(max_epochs=2).fit(plain, normal, normal)
    assert model.losses == plain.losses
    assert same_state(model, plain)
    assert not any(hook_counts(model).values())


@pytest.mark.parametrize(("learn", "rows"), [(None, 50), (1, 8), (3, 24), (100, 100)])
def test_what_is_learned_is_exact_and_frozen(learn: int | None, rows: int) -> None:
    normalizer, inputs = InputNormalizer(modules="net.0", learn_batches=learn), Inputs()
    found = data()
    trainer([normalizer, inputs], max_epochs=2, num_sanity_val_steps=1).fit(Classifier(mlp(), lr=0.01), found, data(shift=900.0))
    seen = torch.cat([everything(found)] * 2)[:rows]
    numbers = normalizer.statistics["net.0"]
    torch.testing.assert_close(torch.tensor(numbers.mean, dtype=torch.float64), seen.mean(0), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(torch.tensor(numbers.std, dtype=torch.float64), seen.std(0, correction=0), rtol=1e-6, atol=0)
    assert (normalizer.frozen, numbers.count) == (True, (rows,) * 8)
    first = everything(found)[:8]
    # the first batch is normalised with itself
    torch.testing.assert_close(inputs.train[0].double(), (first - first.mean(0)) / first.std(0, correction=0), rtol=1e-4, atol=1e-5)
    # the last one with the numbers of all that was learned from by then
    last = everything(found)[48:]
    torch.testing.assert_close(inputs.train[-1].double(), (last - seen.mean(0)) / seen.std(0, correction=0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(inputs.other[0], data(shift=900.0).dataset.tensors[0][:8])  # sanity check: nothing known yet


def test_evaluation_is_normalised_too_and_a_checkpoint_brings_the_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, normalizer = Predicts(mlp()), InputNormalizer(modules="net", learn_batches=4)
    fit = trainer([normalizer], enable_checkpointing=False)
    fit.fit(model, data(), data())
    fit.save_checkpoint(tmp_path / "learned.ckpt")
    x = data().dataset.tensors[0]
    expected = model.net(normalizer.normalize(x))
    torch.testing.assert_close(torch.cat(trainer([normalizer]).predict(model, data())), expected)
    fresh = InputNormalizer(modules="net", learn_batches=4)
    found = trainer([fresh]).predict(model, data(), ckpt_path=tmp_path / "learned.ckpt", weights_only=True)
    torch.testing.assert_close(torch.cat(found), expected)
    assert fresh.statistics == normalizer.statistics
    for stage in ("validate", "test"):
        inputs = Inputs()
        getattr(trainer([fresh, inputs]), stage)(model, data(), verbose=False)
        torch.testing.assert_close(torch.cat(inputs.other), normalizer.normalize(x))
    alone = InputNormalizer(modules="net")
    alone.load_state_dict(torch.load(tmp_path / "learned.ckpt", weights_only=True)["callbacks"][alone.state_key])
    with torch.no_grad(), alone.apply_to(model) as hooks:
        assert len(hooks) == 1
        torch.testing.assert_close(model.net(x), expected, rtol=0, atol=0)
    assert not any(hook_counts(model).values())


@pytest.mark.parametrize("at", [(0, 2), (1, 3)])
def test_a_resumed_run_equals_the_uninterrupted_one(at: tuple[int, int], tmp_path: Path) -> None:
    class Scaled(Batches):
        def __init__(self) -> None:
            super().__init__((8,))
            self.items = [(x * 7 + 3, y) for x, y in self.items]

    def fit(callbacks: Any, **kwargs: Any) -> tuple[Classifier, InputNormalizer]:
        torch.manual_seed(0)
        model, normalizer = Classifier(mlp()), InputNormalizer(modules="net", learn_batches=5)
        with contextlib.suppress(SystemExit):
            trainer([normalizer, *callbacks], max_epochs=2).fit(model, Scaled(), **kwargs)
        return model, normalizer

    whole, normalizer = fit([])
    fit([SaveAt(tmp_path / "at.ckpt", *at)])
    resumed, other = fit([], ckpt_path=tmp_path / "at.ckpt", weights_only=True)
    for name in ("mean", "std"):
        ours, theirs = (torch.tensor(getattr(one.statistics["net"], name)) for one in (normalizer, other))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(value, resumed.state_dict()[key], rtol=1e-5, atol=1e-7)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Takes()

    def forward(self, x: Tensor) -> Tensor:
        return self.first(ids=torch.arange(len(x)), pixels=x)


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, ids: Tensor, pixels: Tensor) -> Tensor:
        self.ids = ids
        return self.layer(pixels)


@pytest.mark.parametrize("argument", [None, "pixels"])
def test_keyword_inputs(argument: str | None) -> None:
    normalizer = InputNormalizer(modules="net.first", argument=argument)
    model = Classifier(Named())
    trainer([normalizer]).fit(model, data())
    numbers = normalizer.statistics["net.first"]
    torch.testing.assert_close(torch.tensor(numbers.mean).double(), everything(data()).mean(0), rtol=1e-6, atol=1e-6)
    assert model.net.first.ids.dtype == torch.int64


def test_values_go_back_to_the_inputs_units() -> None:
    normalizer, x = InputNormalizer(modules="net.0", mean=100.0, std=10.0), torch.randn(5, 8)
    torch.testing.assert_close(normalizer.inverse(x), x * 10 + 100)
    trainer([normalizer]).fit(Classifier(mlp()), data(shift=100.0))
    torch.testing.assert_close(normalizer.inverse(normalizer.normalize(x), "net.0"), x, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"module must name one whose input is normalised \(net\.0\); got 'net'"):
        normalizer.inverse(x, "net")


def test_a_recomputed_layer_neither_learns_twice_nor_goes_without() -> None:
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Module):
        def __init__(self, reentrant: bool | None) -> None:
            super().__init__()
            self.body, self.head, self.reentrant = nn.Linear(8, 16), nn.Linear(16, 3), reentrant

        def forward(self, x: Tensor) -> Tensor:
            if self.reentrant is None:
                return self.head(self.body(x).tanh())
            return self.head(checkpoint(self.body, x.requires_grad_(), use_reentrant=self.reentrant).tanh())

    found = []
    for reentrant in (None, True, False):
        torch.manual_seed(0)
        model, normalizer = Classifier(Recomputed(reentrant)), InputNormalizer(modules="net.body", learn_batches=3)
        trainer([normalizer]).fit(model, data())
        found.append((model, normalizer.statistics))
    assert found[0][1] == found[1][1] == found[2][1]
    assert same_state(found[0][0], found[1][0])
    assert same_state(found[0][0], found[2][0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*lru_cache.*")
def test_compiled_models_are_normalised() -> None:
    class Plain(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    found = []
    for compile_it in (False, True):
        torch.compiler.reset()
        torch.manual_seed(0)
        model, normalizer = Plain(mlp()), InputNormalizer(modules="net.0", learn_batches=3)
        if compile_it:
            model.net.compile(backend="eager")
        trainer([normalizer], max_epochs=2).fit(model, data(n=48))
        found.append((model, normalizer.statistics))
    torch.compiler.reset()
    assert found[0][1]["net.0"].count == found[1][1]["net.0"].count
    for key, value in found[0][0].state_dict().items():
        torch.testing.assert_close(value, found[1][0].state_dict()[key], rtol=1e-5, atol=1e-6)


BAD = [
    ({"modules": None}, TypeError, "modules must name the module whose input is normalised.*got None"),
    ({"modules": "net", "mean": 1.0}, TypeError, "Pass mean and std together"),
    ({"modules": "net", "learn_batches": 0}, ValueError, "learn_batches must be at least 1.*got 0"),
    ({"modules": "net", "learn_batches": "all"}, TypeError, "learn_batches must be an integer.*got 'all'"),
    ({"modules": "net", "learn_batches": 2, "mean": 0.0, "std": 1.0}, ValueError, "learn_batches=2 goes with learned statistics"),
    ({"modules": "net", "dim": 1.0}, TypeError, "dim must be an integer.*got 1.0"),
    ({"modules": "net", "dim": None, "mean": [0.0, 1.0], "std": [1.0, 1.0]}, ValueError, "dim=None takes one mean.*got 2 of each"),
    ({"modules": "net", "argument": 3}, TypeError, "argument must be the name of a parameter of forward, or None; got 3"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_arguments_are_rejected(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        InputNormalizer(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modules": "nte"}, "modules='nte' matches no module of Classifier. Closest names: 'net'"),
        ({"modules": "net.0", "argument": "x"}, "argument='x': the forward of 'net.0' takes 'input'"),
        ({"modules": "net", "dim": 2}, r"dim=2 is not a dimension of the input of 'net', of shape \(8, 8\)"),
        ({"modules": "net", "mean": [0.0, 0.0], "std": [1.0, 1.0]}, "with 8 channels in dimension 1; the mean has 2"),
    ],
)
def test_what_does_not_fit_the_model_ends_the_fit(arguments: dict[str, Any], message: str) -> None:
    model = Classifier(mlp())
    with pytest.raises(ValueError, match=message):
        trainer([InputNormalizer(**arguments)]).fit(model, loader())
    assert not any(hook_counts(model).values())
