"""From patterns to modules."""

import pytest
import torch
import torchmetrics
from torch import nn

from lightning_hooks.hooks import select_modules
from lightning_hooks.hooks.selection import check_selector, clean_name, named_sites


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


def test_pairs_are_the_modules_themselves():
    net = Net()
    assert all(module is net.get_submodule(name) for name, module in select_modules(net))


def test_the_root_is_never_chosen():
    net = Net()
    assert "" not in names(net, "*")
    assert all(module is not net for _, module in select_modules(net, lambda name, module: True))


def test_multihead_attention_is_one_site():
    layer = nn.TransformerEncoderLayer(4, 2, 8)
    assert names(layer) == ["self_attn", "linear1", "linear2", "norm1", "norm2"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
@pytest.mark.parametrize("parametrise", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_a_parametrised_layer_is_one_site(parametrise):
    root = nn.Sequential(parametrise(nn.Linear(2, 2)), nn.ReLU())
    assert names(root) == ["0", "1"]


class Experts(nn.Module):
    """Weights in one parameter, next to an activation."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3, 3))
        self.act = nn.ReLU()


def test_a_module_with_weights_whose_submodules_have_none_is_a_site():
    assert names(nn.Sequential(Experts(), nn.Linear(3, 3))) == ["0", "0.act", "1"]
    around = Experts()
    around.inner = nn.Linear(3, 3)
    assert names(nn.Sequential(around)) == ["0.act", "0.inner"]


def test_a_shared_module_is_one_site_under_its_first_name():
    shared = nn.Linear(2, 2)
    assert names(nn.Sequential(shared, nn.ReLU(), shared)) == ["0", "1"]


def test_names_are_those_of_the_uncompiled_model():
    net = Net()
    assert names(torch.compile(net)) == LEAVES
    net.encoder[0] = torch.compile(net.encoder[0])
    net.head = torch.compile(net.head)
    assert names(net) == LEAVES
    assert names(net, ["head", "encoder.0"]) == ["encoder.0", "head"]
    assert dict(select_modules(net, "head"))["head"] is net.head._orig_mod


def test_checkpoint_wrappers_leave_no_trace():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    net = Net()
    net.encoder[1] = checkpoint_wrapper(net.encoder[1])
    assert names(net) == LEAVES
    assert [name for name, _ in named_sites(net)].count("encoder.1") == 1


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


def test_a_module_with_lists_of_parameters_is_a_leaf():
    """Ensembles and experts whose weights are stacked; the list itself is never called."""
    stacked = nn.Module()
    stacked.weights = nn.ParameterList([nn.Parameter(torch.zeros(5, 4, 4)) for _ in range(2)])
    stacked.biases = nn.ParameterDict({"first": nn.Parameter(torch.zeros(5, 1, 4))})
    assert [name for name, _ in select_modules(nn.ModuleDict({"net": stacked}))] == ["net"]


def test_nothing_that_computes():
    with pytest.raises(ValueError, match=r"Sequential has no leaf module that computes something.*Name the modules"):
        select_modules(nn.Sequential(nn.Dropout(), nn.Identity()))


def test_a_model_that_is_a_single_layer_says_so():
    with pytest.raises(ValueError, match=r"Linear has no submodules to observe.*torch.nn.Sequential\(model\)"):
        select_modules(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="Linear has no submodules"):
        select_modules(nn.Linear(2, 2), "encoder")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_jit_made_takes_no_hooks_and_is_never_chosen():
    net = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), nn.Linear(2, 1))
    for modules in (None, "*", nn.Linear):
        assert [name for name, _ in select_modules(net, modules)] == ["1"]
    with pytest.raises(ValueError, match=r"modules='0\.\*' matches '0.0', a torch.jit module, which takes no hooks"):
        select_modules(net, "0.*")


def test_types_by_their_full_names_as_a_configuration_writes_them():
    net = nn.Sequential(Block(), nn.Linear(2, 2), nn.ReLU6())
    here = f"{Block.__module__}.Block"
    for written, kind in (("torch.nn.Conv2d", nn.Conv2d), ("torch.nn.modules.conv.Conv2d", nn.Conv2d), (here, Block)):
        assert select_modules(net, written) == select_modules(net, kind)
    assert select_modules(net, ["torch.nn.Hardtanh", "1"]) == select_modules(net, [nn.Hardtanh, "1"]) != []  # a ReLU6 is one
    with pytest.raises(ValueError, match=r"modules='torch\.nn\.LSTM' matches no module of Sequential"):
        select_modules(net, "torch.nn.LSTM")
