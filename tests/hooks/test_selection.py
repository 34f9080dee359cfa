"""From patterns to modules."""

import pytest
import torch
import torchmetrics
from torch import nn

from lightning_hooks.hooks import select_modules
from lightning_hooks.hooks.selection import check_selector, clean_name


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 1)
        self.conv2 = nn.Conv2d(2, 2, 1)
        self.act = nn.ReLU()
        self.drop = nn.Dropout(0.1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(Block(), Block())
        self.flatten = nn.Flatten()
        self.norm = nn.LayerNorm(2)
        self.head = nn.Linear(2, 2)
        self.skip = nn.Identity()
        self.loss = nn.CrossEntropyLoss()
        self.accuracy = torchmetrics.MeanMetric()
        self.extras = nn.ModuleDict({"metrics": torchmetrics.MetricCollection([torchmetrics.SumMetric()])})


def names(root, modules=None):
    return [name for name, _ in select_modules(root, modules)]


LEAVES = [f"encoder.{i}.{leaf}" for i in (0, 1) for leaf in ("conv1", "conv2", "act")] + ["norm", "head"]


def test_default_is_every_leaf_that_computes():
    assert names(Net()) == LEAVES


@pytest.mark.parametrize(
    ("modules", "chosen"),
    [
        ("head", ["head"]),
        ("encoder.*.conv?", [name for name in LEAVES if "conv" in name]),
        ("encoder.?", ["encoder.0", "encoder.1"]),
        ("*.conv[1]", ["encoder.0.conv1", "encoder.1.conv1"]),
        ("flatten", ["flatten"]),
        (["head", "encoder.1.act"], ["encoder.1.act", "head"]),
        (("head", "h*"), ["head"]),
        (nn.Conv2d, [name for name in LEAVES if "conv" in name]),
        ([nn.LayerNorm, "head"], ["norm", "head"]),
        (lambda name, module: name.endswith("1") and isinstance(module, Block), ["encoder.1"]),
    ],
)
def test_selectors_choose_in_model_order(modules, chosen):
    assert names(Net(), modules) == chosen


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
@pytest.mark.parametrize("parametrise", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_a_parametrised_layer_is_one_site(parametrise):
    root = nn.Sequential(parametrise(nn.Linear(2, 2)), nn.ReLU())
    assert names(root) == ["0", "1"]


def test_names_are_those_of_the_uncompiled_model():
    net = Net()
    assert names(torch.compile(net)) == LEAVES
    net.encoder[0] = torch.compile(net.encoder[0])
    net.head = torch.compile(net.head)
    assert names(net) == LEAVES
    assert names(net, ["head", "encoder.0"]) == ["encoder.0", "head"]
    assert dict(select_modules(net, "head"))["head"] is net.head._orig_mod


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("head", "head"),
        ("_orig_mod", ""),
        ("_orig_mod.body.weight", "body.weight"),
        ("a._checkpoint_wrapped_module.b._fsdp_wrapped_module.c", "a.b.c"),
        ("my_orig_mod.x", "my_orig_mod.x"),
    ],
)
def test_clean_name(name, clean):
    assert clean_name(name) == clean


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ("haed", r"modules='haed' matches no module of Net. Closest names: 'head'.* Patterns are globs on the names of named"),
        ("encoder.0.conv3", r"Closest names: 'encoder\.0\.conv[12]', 'encoder"),
        (["head", "zzz*"], r"modules='zzz\*' matches no module"),
        ("Head", r"modules='Head' matches no module of Net\. Closest names: 'head'"),
        (nn.LSTM, "modules=LSTM matches no module of Net; its modules are of type .*Conv2d.*Linear"),
        (lambda name, module: False, r"selects none of the \d+ modules of Net. It is called with \(name, module\)"),
        ("", r"modules must be a glob pattern .*; got '', which names nothing"),
        ([], r"got \[\], which names nothing"),
        (["head", ""], "which names nothing"),
    ],
)
def test_nothing_selected_is_an_error_with_a_remedy(modules, message):
    with pytest.raises(ValueError, match=message):
        select_modules(Net(), modules)


@pytest.mark.parametrize("modules", [3, {"head": 1}, ["head", 3], [int]], ids=str)
def test_wrong_types(modules):
    wrong = repr(modules[-1] if isinstance(modules, list) else modules).replace("{", r"\{")
    with pytest.raises(TypeError, match=f"modules must be a glob pattern on module names .* every leaf .*; got {wrong}"):
        check_selector(modules)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_jit_made_takes_no_hooks_and_is_never_chosen():
    net = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), nn.Linear(2, 1))
    for modules in (None, "*", nn.Linear):
        assert [name for name, _ in select_modules(net, modules)] == ["1"]
    with pytest.raises(ValueError, match=r"modules='0\.\*' matches '0.0', a torch.jit module, which takes no hooks"):
        select_modules(net, "0.*")
