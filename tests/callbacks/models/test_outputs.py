"""Outputs of every shape, modules of every kind."""

from __future__ import annotations

import dataclasses
import math
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lightning_hooks import monitors
from tests.support.models import Classifier, hook_counts, loader, trainer
from tests.support.reference import assert_stats, reference_stats

Pair = namedtuple("Pair", ["a", "b"])


@dataclasses.dataclass
class Record:
    a: Tensor
    note: str
    b: Tensor


class Wrapped(Tensor):
    """A tensor subclass."""


def model_output(a: Tensor, b: Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=a, hidden_states=(a, b))


PACKERS: dict[str, tuple[Any, Any]] = {
    "tuple": (lambda a, b: (a, b), lambda o: o[0] + o[1]),
    "list": (lambda a, b: [a, b], lambda o: o[0] + o[1]),
    "dict": (lambda a, b: {"a": a, "b": b, "n": 3}, lambda o: o["a"] + o["b"]),
    "namedtuple": (Pair, lambda o: o.a + o.b),
    "dataclass": (lambda a, b: Record(a, "x", b), lambda o: o.a + o.b),
    "model output": (model_output, lambda o: o.last_hidden_state + o.hidden_states[1]),
    "nested": (lambda a, b: {"x": [(a,), {"y": b}], "z": None}, lambda o: o["x"][0][0] + o["x"][1]["y"]),
    "integers next to": (lambda a, b: (a, b, torch.arange(5), torch.ones(3) > 0), lambda o: o[0] + o[1]),
    "complex next to": (lambda a, b: (a, b, torch.complex(a, b)), lambda o: o[0] + o[1]),
    "subclass": (lambda a, b: (a.as_subclass(Wrapped), b), lambda o: (o[0] + o[1]).as_subclass(Tensor)),
}


class Packing(nn.Module):
    def __init__(self, pack: Any) -> None:
        super().__init__()
        self.one, self.two, self.pack = nn.Linear(8, 4), nn.Linear(8, 4), pack

    def forward(self, x: Tensor) -> Any:
        return self.pack(self.one(x), self.two(x))


class WithPacking(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        pack, self.unpack = PACKERS[kind]
        self.packing, self.head = Packing(pack), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.unpack(self.packing(x)))


def fit(net: nn.Module, modules: Any = None, shape: tuple[int, ...] = (8,), optimizer: Any = torch.optim.SGD) -> list[Any]:
    torch.manual_seed(0)
    ours = monitors(modules=modules, every_n_steps=1, summary=False)
    trainer(ours, gradient_clip_val=0.5).fit(Classifier(net, optimizer=optimizer), loader(shape))
    assert not any(callback.faults.errors for callback in ours[:3])
    return [callback.report for callback in ours[:3]]


@pytest.mark.parametrize("kind", PACKERS)
def test_every_container_pools_the_floats_in_it(kind: str) -> None:
    torch.manual_seed(1)
    features, flow, _ = fit(WithPacking(kind), ["net.packing", "net.packing.*"])
    both = features.sites["net.packing"]
    one, two = features.sites["net.packing.one"], features.sites["net.packing.two"]
    assert (both.calls, both.count) == (7, one.count + two.count)
    assert_stats(both, {"mean": (one.mean + two.mean) / 2, "rms": math.sqrt((one.rms**2 + two.rms**2) / 2)})
    assert both.min == min(one.min, two.min)
    whole = flow.modules["net.packing"]
    assert whole.count == flow.modules["net.packing.one"].count * 2
    assert whole.rms == pytest.approx(flow.modules["net.packing.one"].rms, rel=1e-5)


class Gives(nn.Module):
    """Passes its input on, and calls a module whose output is odd."""

    def __init__(self, make: Any) -> None:
        super().__init__()

        class Odd(nn.Module):
            def forward(self, x: Tensor) -> Any:
                return make(x)

        self.odd, self.head = Odd(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.odd(x)
        return self.head(x)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: None, 0),
        (lambda x: "text", 0),
        (lambda x: x > 0, 0),
        (lambda x: torch.arange(4), 0),
        (lambda x: torch.complex(x, x), 0),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), 0),
        (lambda x: torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse(), 2 * 7),
        (lambda x: torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse_csr(), 2 * 7),
        (lambda x: torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged), 16 * 7),
        (lambda x: torch.nested.nested_tensor([x[0], x[1]]), 16 * 7),
    ],
    ids=["None", "text", "bool", "int", "complex", "quantised", "sparse", "csr", "jagged", "nested"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:.*quantiz.*", "ignore:.*nested.*")
def test_statistics_where_there_are_floats_and_quiet_elsewhere(make: Any, expected: int) -> None:
    features, _, _ = fit(Gives(make))
    if expected:
        assert features.sites["net.odd"].count == expected
    else:
        assert features.silent == ("net.odd",)
    assert not [alert for alert in features.alerts if alert.severity != "info"]


def test_packed_sequences() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            lengths = torch.full((len(x),), 3)
            out, _ = self.lstm(pack_padded_sequence(x, lengths, batch_first=True))
            return self.head(pad_packed_sequence(out, batch_first=True)[0][:, -1])

    features, flow, _ = fit(Packed(), shape=(5, 6))
    assert features.sites["net.lstm"].count == 50 * 4 * (3 + 1 + 1)
    assert flow.modules["net.lstm"].calls == 7


def test_a_module_called_n_times_and_a_shared_one() -> None:
    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
            self.alias = self.cell

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(5):
                x = torch.tanh(self.cell(x))
            return self.head(self.alias(x))

    features, flow, _ = fit(Unrolled())
    assert [site for site in features.sites if site not in features.functions] == ["net.cell", "net.head"]
    assert set(features.functions) == {"net/tanh", *(f"net/tanh_{i}" for i in range(1, 5))}
    assert features.sites["net.cell"].calls == flow.modules["net.cell"].calls == 6 * 7
    assert [name for name in flow.parameters if "alias" in name] == []


def test_keyword_inputs_lazy_and_parametrised_layers_and_odd_names() -> None:
    class Keyword(nn.Module):
        def forward(self, *, x: Tensor) -> Tensor:
            return x * 2.0

    class Everything(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keyword, self.lazy = Keyword(), nn.LazyLinear(8)
            self.weighted = parametrizations.weight_norm(nn.Linear(8, 8))
            self.spectral = parametrizations.spectral_norm(nn.Linear(8, 8))
            self.add_module("a/b <c> é", nn.Linear(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.spectral(self.weighted(self.lazy(self.keyword(x=x))))
            return getattr(self, "a/b <c> é")(x)

    class Once(Classifier):
        def configure_optimizers(self) -> Any:
            self.net(torch.zeros(2, 8))  # lazy layers want one call before the optimizer
            return super().configure_optimizers()

    ours = monitors(every_n_steps=1, summary=False)
    run = trainer(ours)
    run.fit(Once(Everything()), loader())
    expected = ["net.keyword", "net.lazy", "net.weighted", "net.spectral", "net.a/b <c> é"]
    assert list(ours[0].report.sites) == expected
    assert {stats.calls for stats in ours[0].report.sites.values()} == {7}
    assert "features/net.a/b <c> é/mean" in run.callback_metrics
    assert "net.weighted.parametrizations.weight.original0" in ours[1].report.parameters


def test_sparse_embedding_gradients() -> None:
    class Words(nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(20, 4, sparse=sparse), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed((x.abs() * 6).long().clamp(max=19)).mean(1))

    def run(sparse: bool) -> list[Any]:
        torch.manual_seed(0)
        ours = monitors(every_n_steps=1, summary=False)
        trainer(ours).fit(Classifier(Words(sparse)), loader())  # Lightning's own clipping fails on sparse gradients
        assert not any(callback.faults.errors for callback in ours[:3])
        return [callback.report for callback in ours[:3]]

    (_, sparse, clip), (_, dense, dense_clip) = run(True), run(False)
    assert sparse.parameters["net.embed.weight"].norm == pytest.approx(dense.parameters["net.embed.weight"].norm, rel=1e-5)
    assert sparse.total_norm == pytest.approx(dense.total_norm, rel=1e-5)
    assert clip.optimizers["0-SGD"].norm_before == pytest.approx(dense_clip.optimizers["0-SGD"].norm_before, rel=1e-5)


# Real models


def tiny(name: str) -> tuple[nn.Module, Any]:
    if name in ("lstm", "vae"):
        return (LanguageLSTM() if name == "lstm" else VAE()), lambda m, ids: m(ids)
    import transformers as t

    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
    if name == "bert":
        return t.BertModel(t.BertConfig(**small)), lambda m, ids: m(input_ids=ids).last_hidden_state
    if name == "gpt2":
        config = t.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0)
        return t.GPT2Model(config), lambda m, ids: m(input_ids=ids).last_hidden_state
    if name == "t5":
        config = t.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=50)
        return t.T5Model(config), lambda m, ids: m(input_ids=ids, decoder_input_ids=ids).last_hidden_state
    if name == "mamba":
        config = t.MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=50, state_size=4)
        return t.MambaModel(config), lambda m, ids: m(input_ids=ids).last_hidden_state
    if name == "vit":
        config = t.ViTConfig(**{**small, "image_size": 8, "patch_size": 4, "num_channels": 1})
        pixels = lambda ids: ids.float().repeat(1, 8)[:, :64].reshape(-1, 1, 8, 8) / 50  # noqa: E731
        return t.ViTModel(config), lambda m, ids: m(pixel_values=pixels(ids)).last_hidden_state
    config = t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_channels=1, layer_type="basic")
    pixels = lambda ids: ids.float().repeat(1, 8)[:, :64].reshape(-1, 1, 8, 8) / 50  # noqa: E731
    return t.ResNetModel(config), lambda m, ids: m(pixel_values=pixels(ids)).last_hidden_state.flatten(2).transpose(1, 2)


class LanguageLSTM(nn.Module):
    """Embedding, LSTM, and the head tied to the embedding's size."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.norm = nn.Embedding(50, 8), nn.LSTM(8, 8, 2, batch_first=True), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.gate, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.lstm(self.embed(ids))[0])
        x = x + self.down(torch.relu(self.up(x)))
        return self.out(torch.sigmoid(self.gate(x)) * x)


class VAE(nn.Module):
    """Encoder, reparametrised latent, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.log_var = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decode, self.refine, self.out = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = torch.relu(self.encode(ids.float() / 50))
        mean, log_var = self.mean(hidden), self.log_var(hidden)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.out(torch.relu(self.refine(torch.relu(self.decode(z)))))[:, None]


class Real(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.body, self.call = tiny(name)
        self.head = nn.LazyLinear(3)
        self(torch.zeros(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        ids = (x.abs() * 10).long().clamp(max=49)
        return self.head(self.call(self.body, ids).mean(1))


class KeepAll:
    """Plain hooks that keep what every site put out."""

    def __init__(self, net: nn.Module, names: list[str]) -> None:
        self.kept: dict[str, list[Any]] = {name: [] for name in names}
        modules = dict(net.named_modules())
        self.handles = [modules[n].register_forward_hook(self._keep(n)) for n in names]

    def _keep(self, name: str) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            first = output if isinstance(output, Tensor) else None
            if first is not None and first.is_floating_point():
                self.kept[name].append(first.detach().double().numpy().copy())

        return keep


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*fast path.*")
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "mamba", "vit", "resnet", "lstm", "vae"])
def test_real_models(name: str) -> None:
    torch.manual_seed(0)
    model = Classifier(Real(name), lr=0.01)
    ours = monitors(every_n_steps=1, summary=False)
    names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.LayerNorm | nn.BatchNorm2d)]
    keep = KeepAll(model, names)
    trainer(ours, gradient_clip_val=1.0).fit(model, loader(n=24))
    features, flow, clip = (callback.report for callback in ours[:3])
    assert not any(callback.faults.errors for callback in ours[:3])
    recorded = [n for n in names if n in features.sites]
    assert len(recorded) >= 6
    for site in recorded:
        assert_stats(features.sites[site], reference_stats(keep.kept[site]), rel=2e-6, context=site)
    assert len(flow.modules) >= len(recorded) - 2  # a pooler that the loss does not use gets no gradient
    assert clip.optimizers["0-SGD"].steps == 3
    # BERT's and ViT's pooler is called and its result thrown away, which is worth a word; nothing else is
    assert {a.kind for r in (features, flow, clip) for a in r.alerts if a.severity != "info"} <= {"missing"}


def test_a_module_that_returns_its_parameter_gathers_no_hooks() -> None:
    class Prompt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.zeros(8))

        def forward(self) -> Tensor:
            return self.p

    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt, self.head = Prompt(), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.prompt())

    model = Classifier(Prompted())
    before = hook_counts(model)
    ours = monitors(every_n_steps=1, summary=False)
    trainer(ours).fit(model, loader())
    assert hook_counts(model) == before
    assert ours[1].report.silent == ("net.prompt",)
    assert ours[1].report.parameters["net.prompt.p"].steps == 7
