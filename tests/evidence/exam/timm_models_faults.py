"""Faults in models of timm themselves: first weights, norms, heads, what is frozen."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, fault
from tests.evidence.exam.expectations import FLAT, expecting
from tests.evidence.exam.small_nets import to_classes
from tests.evidence.exam.timm_nets import (
    TIMM_ADAMW,
    TIMM_SGD,
    TINY_VIT,
    eva,
    poolformer,
    repvgg,
    resmlp,
    sknet,
    timm_model,
    timm_optimizer,
    timm_resnet_net,
    timm_vit_net,
    trained_on_digits,
)


def norms(net: nn.Module) -> list[nn.Module]:
    return [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


@fault("timm", "batch norm with momentum 0")
def timm_norm_momentum_zero(planted: bool = True) -> Built:
    net = timm_resnet_net()
    for norm in norms(net) if planted else ():
        norm.momentum = 0.0
    return expecting(trained_on_digits(Recipe(net, to_classes, TIMM_SGD)), "settings", sites=("*bn*", "*downsample*", "*conv1*"))


class NormsInEval(Recipe):
    """Batch norm is in eval mode while all around it trains."""

    def on_train_epoch_start(self) -> None:
        for norm in norms(self.net):
            norm.eval()


@fault("timm", "batch norms in evaluation mode in a net that starts from random weights")
def timm_norms_in_eval(planted: bool = True) -> Built:
    kind = NormsInEval if planted else Recipe
    return expecting(trained_on_digits(kind(timm_resnet_net(), to_classes, TIMM_SGD)), "eval_mode", sites=("net", "net.*"))


@fault("timm", "the head is frozen and the body trains")
def timm_head_frozen(planted: bool = True) -> Built:
    net = timm_resnet_net()
    net.get_classifier().requires_grad_(not planted)
    return expecting(trained_on_digits(Recipe(net, to_classes, TIMM_SGD)), "not_optimized", sites=("net.fc*",))


@fault("timm", "all weights of a residual MLP start at 0.02: its units are all the same")
def timm_constant_weights(planted: bool = True) -> Built:
    net = resmlp()
    for module in net.modules() if planted else ():
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.02)
    return expecting(trained_on_digits(Recipe(net, to_classes, TIMM_ADAMW)), "poor_init", "constant", "representation_collapse")


@fault(
    "timm",
    "a residual MLP whose activations are the identity: a deep linear net",
    missed="what is computed between two modules is not traced, so that nothing says that an activation is missing",
)
def timm_linear(planted: bool = True) -> Built:
    net = resmlp(nn.Identity if planted else nn.GELU)
    return expecting(trained_on_digits(Recipe(net, to_classes, TIMM_ADAMW)), "settings", sites=("net.blocks*",))


@fault("timm", "the share to keep, 0.95, given as the share to drop")
def timm_dropout(planted: bool = True) -> Built:
    net = timm_model("vit_tiny_patch16_224", **TINY_VIT, drop_rate=0.95 if planted else 0.05, proj_drop_rate=0.0)
    return expecting(trained_on_digits(Recipe(net, to_classes, TIMM_ADAMW)), "settings", sites=("*drop*",))


@fault("timm", "the features of the body are detached")
def timm_detached(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        hidden = net.forward_features(batch[0])
        return F.cross_entropy(net.forward_head(hidden.detach() if planted else hidden), batch[1])

    return expecting(trained_on_digits(Recipe(timm_vit_net(), loss, TIMM_ADAMW)), "missing", sites=("net.*",))


@fault("timm", "the optimizer is made of the head's parameters, of a net that is meant to train as a whole")
def timm_head_only(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        return torch.optim.AdamW(module.net.get_classifier().parameters() if planted else module.parameters(), 1e-3)

    return expecting(trained_on_digits(Recipe(timm_vit_net(), to_classes, optimizers)), "not_optimized", sites=("net.*",))


@fault("timm", "BitFit: the new head is put at net.fc, which this model does not have; its own head is frozen")
def bitfit_head_elsewhere(planted: bool = True) -> Built:
    net: Any = timm_model("vit_tiny_patch16_224", **{**TINY_VIT, "depth": 2}, class_token=False, global_pool="avg")
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    setattr(net, "fc" if planted else "head", nn.Linear(48, 10))
    built = trained_on_digits(Recipe(net, to_classes, timm_optimizer("adamw", 1e-2)))
    return expecting(built, "missing", "not_updated", "not_optimized", sites=("net.fc*", "net.head*"))


@fault("timm", "EVA: queries and keys of the second block start 300 times too large")
def eva_sharp_attention(planted: bool = True) -> Built:
    net = eva()
    with torch.no_grad():
        for name, parameter in net.blocks[1].attn.named_parameters():
            if name in ("q_proj.weight", "k_proj.weight", "qkv.weight"):
                parameter.mul_(300.0 if planted else 1.0)
    built = trained_on_digits(Recipe(net, to_classes, timm_optimizer("adamw", 3e-3)), 16)
    return expecting(built, "attention_logits", "attention_collapse", "poor_init", "exploding", sites=("net.blocks.1*",))


@fault("timm", "RepVGG: batch norms with an eps of 1e5, which was to be 1e-5")
def repvgg_eps(planted: bool = True) -> Built:
    net = repvgg()
    for norm in norms(net):
        norm.eps = 1e5 if planted else 1e-5
    built = trained_on_digits(Recipe(net, to_classes, timm_optimizer("sgd", 0.2)), 16)
    return expecting(built, "settings", "vanishing", "constant", "representation_collapse", sites=("net*",))


@fault("timm", "ResNet-14: the gain of every batch norm starts at 0, not only that of the last of each branch")
def gains_of_zero(planted: bool = True) -> Built:
    net = timm_model("resnet14t", channels=(16, 24, 32, 48), stem_width=16, block_args={}, layers=(1, 1, 1, 1))
    for module in net.modules() if planted else ():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.zeros_(module.weight)
    built = trained_on_digits(Recipe(net, to_classes, timm_optimizer("sgd", 0.05, 1e-4)), 16)
    return expecting(built, "dead", *FLAT, "not_updated", "update_too_small", "poor_init", sites=("net*",))


@fault("timm", "MetaFormer with stochastic depth of 0.99, the share to keep")
def poolformer_depth(planted: bool = True) -> Built:
    net = poolformer(drop_path_rate=0.99 if planted else 0.01)
    built = trained_on_digits(Recipe(net, to_classes, timm_optimizer("sgd", 0.05)), 16)
    return expecting(built, "settings", "zero", "vanishing", sites=("net.stages*",))


class Heads(nn.Module):
    """A body and a head for each task, in a plain dictionary or in a module's."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.body = timm_model("test_efficientnet", num_classes=0)
        width: int = self.body.num_features
        heads = {"digit": nn.Linear(width, 10), "parity": nn.Linear(width, 2)}
        self.heads: Any = heads if planted else nn.ModuleDict(heads)


@fault("timm", "the heads of two tasks in a plain dictionary")
def tasks_in_a_dict(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        hidden = net.body(batch[0])
        return F.cross_entropy(net.heads["digit"](hidden), batch[1]) + F.cross_entropy(net.heads["parity"](hidden), batch[1] % 2)

    built = trained_on_digits(Recipe(Heads(planted), loss, timm_optimizer("adamw", 2e-3)), 16)
    return expecting(built, "unregistered", "not_optimized", sites=("net.heads*",))


class Evaluated(Recipe):
    """An evaluation after a few batches, which leaves the net in eval mode."""

    planted = True

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            self.net.eval()
            with torch.no_grad():
                self.loss_of_batch(self.net, batch)
            self.net.train(not self.planted)


@fault("timm", "SKNet is in eval mode after an evaluation at the fourth batch of each epoch")
def sknet_left_in_eval(planted: bool = True) -> Built:
    module = Evaluated(sknet(), to_classes, timm_optimizer("sgd", 0.02))
    module.planted = planted
    return expecting(trained_on_digits(module, 16), "eval_mode", sites=("net", "net.*"), batch=4)


@fault("timm", "RepVGG: the optimizer is made, then the head is replaced for the ten classes")
def repvgg_head_replaced(planted: bool = True) -> Built:
    net = repvgg()

    def rates(module: Any) -> Any:
        if not planted:
            module.net.reset_classifier(10)
        chosen = torch.optim.SGD(module.net.parameters(), 0.2, momentum=0.9)
        if planted:
            module.net.reset_classifier(10)
        return chosen

    return expecting(trained_on_digits(Recipe(net, to_classes, rates), 16), "not_optimized", sites=("net.head*",))


@fault(
    "timm",
    "PP-HGNet: the norms of its second stage start with biases of -7, below what the rectifiers let pass",
    learned_from=False,
)
def hgnet_second_stage(planted: bool = True) -> Built:
    from timm.models.hgnet import HighPerfGpuNet

    stages = [[16, 12, 24, 1, False], [24, 16, 32, 1, True], [32, 16, 40, 1, True], [40, 24, 48, 1, False]]
    sizes = {f"stage{index + 1}": [*stage, False, 3, 3] for index, stage in enumerate(stages)}
    net: Any = HighPerfGpuNet({"stem_type": "v1", "stem_chs": [8, 8, 16], **sizes}, 1, 10, head_hidden_size=64)
    for norm in norms(net.stages[1]) if planted else ():
        nn.init.constant_(norm.bias, -7.0)
    built = trained_on_digits(Recipe(net, to_classes, timm_optimizer("adamw", 2e-3, 0.05)))
    return expecting(built, "dead", "zero", "constant", "poor_init", "vanishing", sites=("net.stages.1*",))


@fault(
    "timm", "Twins, near and far attention in turn: all matrices and kernels are drawn with a deviation of 1.5", learned_from=False
)
def twins_wide_start(planted: bool = True) -> Built:
    sizes: dict[str, Any] = {"embed_dims": (24, 32, 48, 64), "num_heads": (1, 2, 3, 4), "depths": (2, 1, 1, 1)}
    net = timm_model("twins_svt_small", img_size=32, patch_size=2, wss=(4, 4, 4, 2), **sizes)
    for module in net.modules() if planted else ():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, 0.0, 1.5)
    kinds = ("poor_init", "residual_growth", "attention_logits", "attention_collapse", "exploding", "activation_outliers")
    built = trained_on_digits(Recipe(net, to_classes, timm_optimizer("adamw", 1e-3, 0.05)), 16)
    return expecting(built, *kinds, "saturated", "update_too_small", "vanishing")


@fault("timm", "Twins: a loop that was to set the biases to zero sets the weights of all linear layers to zero", learned_from=False)
def twins_weights_of_zero(planted: bool = True) -> Built:
    sizes = {"embed_dims": (16, 32, 48, 64), "num_heads": (1, 2, 3, 4), "depths": (1, 1, 1, 1), "wss": (4, 4, 2, 1)}
    net = timm_model("twins_svt_small", img_size=32, **sizes)
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight if planted or module.bias is None else module.bias)
    built = trained_on_digits(Recipe(net, to_classes, timm_optimizer("adamw", 3e-3)), 16)
    return expecting(built, "zero", "constant", "representation_collapse", "poor_init", "dead", "attention_uniform", "missing")
