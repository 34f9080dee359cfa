"""Faults: parts that are not joined, frozen, shared, or in the wrong mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.counts import cells
from tests.evidence.exam.healthy_graphs import adam, of_nodes, on_nodes
from tests.evidence.exam.healthy_peft import with_adapter
from tests.evidence.exam.healthy_scvi import planned
from tests.evidence.exam.healthy_timm import create, cross_entropy, optimizer, trained
from tests.evidence.exam.language_models import image_classifier, language_model, llama_net, translation
from tests.evidence.exam.planted_timm import expecting
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, warm_linear
from tests.evidence.exam.seen_models import mbart_net
from tests.evidence.exam.seen_pictures import beit_net, picture_to_text_net
from tests.evidence.exam.seen_timm import poolformer, repvgg, sknet
from tests.evidence.exam.signals import captioned, digits
from tests.evidence.exam.texts import characters, pairs


@fault("peft", "VeRA whose two vectors both start at zero")
def vera_both_zero(planted: bool = True) -> Built:
    from peft import VeraConfig

    config = VeraConfig(r=32, d_initial=0.0 if planted else 0.1, target_modules=["q_proj", "o_proj"], task_type="CAUSAL_LM")
    net = with_adapter(llama_net(num_key_value_heads=4), config)
    expected = Expected(("zero", "not_updated", "update_too_small", "missing", "vanishing"), ("net*vera*", "net*_proj*"))
    return Built(Recipe(net, language_model, adamw(2e-2)), characters(48, 8), SHORT, expected)


@fault("timm", "MetaFormer with stochastic depth of 0.99, the share to keep")
def poolformer_depth(planted: bool = True) -> Built:
    net = poolformer(drop_path_rate=0.99 if planted else 0.01)
    built = trained(Recipe(net, cross_entropy, optimizer("sgd", 0.05)), 16)
    return expecting(built, "settings", "zero", "vanishing", sites=("net.stages*",))


class Heads(nn.Module):
    """A body and a head for each task, in a plain dictionary or in a module's."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.body = create("test_efficientnet", num_classes=0)
        width: int = self.body.num_features
        heads = {"digit": nn.Linear(width, 10), "parity": nn.Linear(width, 2)}
        self.heads: Any = heads if planted else nn.ModuleDict(heads)


@fault("timm", "the heads of two tasks in a plain dictionary")
def tasks_in_a_dict(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        hidden = net.body(batch[0])
        return F.cross_entropy(net.heads["digit"](hidden), batch[1]) + F.cross_entropy(net.heads["parity"](hidden), batch[1] % 2)

    built = trained(Recipe(Heads(planted), loss, optimizer("adamw", 2e-3)), 16)
    return expecting(built, "unregistered", "not_optimized", sites=("net.heads*",))


@fault("torch_geometric", "one layer norm and one layer for five places")
def graphs_one_norm(planted: bool = True) -> Built:
    from torch_geometric.nn import SAGEConv

    class Normed(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
            norm, layer = nn.BatchNorm1d(width), SAGEConv(width, width)
            self.layers = nn.ModuleList(layer if planted else SAGEConv(width, width) for _ in range(5))
            self.norms = nn.ModuleList(norm if planted else nn.BatchNorm1d(width) for _ in range(5))

        def forward(self, x: Any, edges: Any) -> Any:
            x = self.first(x)
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = norm(layer(x, edges)).relu()
            return self.last(x)

    return expecting(on_nodes(Recipe(Normed(), of_nodes, adam(5e-3))), "shared", sites=("net.layers*", "net.norms*"))


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
    module = Evaluated(sknet(), cross_entropy, optimizer("sgd", 0.02))
    module.planted = planted
    return expecting(trained(module, 16), "eval_mode", sites=("net", "net.*"), batch=4)


class Thawed(Recipe):
    """The body is frozen for the first epoch; the optimizer is made then, of what trains."""

    planted = True

    def on_train_epoch_start(self) -> None:
        if self.current_epoch:
            self.net.beit.requires_grad_(True)


@fault("transformers", "BEiT whose body is unfrozen in the second epoch, while the optimizer holds the head alone")
def beit_thawed(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        return torch.optim.AdamW([p for p in module.parameters() if p.requires_grad or not planted], 2e-3)

    net = beit_net()
    net.beit.requires_grad_(False)
    expected = Expected(("not_optimized", "not_updated"), ("net.beit*",), batch=24, epoch=1)
    return Built(Thawed(net, image_classifier, rates), digits(16, 16), SHORT, expected)


@fault("transformers", "the reader of pictures is called under no_grad, and only the writer learns")
def reader_without_gradient(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        with torch.set_grad_enabled(not planted):
            read = net.encoder(pixel_values=batch[0])
        return net(encoder_outputs=(read.last_hidden_state,), labels=batch[1]).loss

    module = Recipe(picture_to_text_net(), loss, warm_linear(adamw(3e-3), steps=96))
    return Built(module, captioned(16, 16), {**CLIPPED, "limit_train_batches": 48}, Expected(("missing",), ("net.encoder*",)))


@fault("transformers", "BEiT whose layer scale is 0 and frozen: its blocks do nothing")
def beit_layer_scale(planted: bool = True) -> Built:
    net = beit_net(layer_scale_init_value=0.1)
    for name, parameter in net.named_parameters() if planted else ():
        if "lambda_" in name:
            nn.init.zeros_(parameter)
            parameter.requires_grad_(False)
    expected = Expected(("zero", "vanishing", "not_updated", "missing", "update_too_small"), ("net.beit.layers*",))
    return Built(Recipe(net, image_classifier, adamw(4e-3)), digits(16, 16), {**SHORT, "limit_train_batches": 48}, expected)


@fault("torch_geometric", "fourteen layers of GraphConv with tanh and no residual connections")
def graphs_plain_deep(planted: bool = True) -> Built:
    from torch_geometric.nn import GCNConv

    class Plain(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
            self.layers = nn.ModuleList(GCNConv(width, width) for _ in range(14))

        def forward(self, x: Any, edges: Any) -> Any:
            x = self.first(x)
            for layer in self.layers:
                x = (0 if planted else x) + layer(x, edges).tanh()
            return self.last(x)

    kinds = ("representation_collapse", "vanishing", "constant", "loss_plateau")
    return expecting(on_nodes(Recipe(Plain(), of_nodes, adam(0.01, 0.0)), max_epochs=30), *kinds)


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


@fault("transformers", "mBART whose decoder does not see the encoder: its attention's output is multiplied by 0")
def mbart_cross_attention_zero(planted: bool = True) -> Built:
    net = mbart_net()
    for layer in net.model.decoder.layers if planted else ():
        layer.encoder_attn.out_proj.register_forward_hook(lambda module, inputs, output: output * 0)
    kinds = ("zero", "missing", "constant", "vanishing", "update_too_small")
    expected = Expected(kinds, ("net.model.encoder*", "net.model.decoder*encoder_attn*"))
    return Built(Recipe(net, translation, adamw(2e-3)), pairs(24, 8), {**SHORT, "max_epochs": 3}, expected)


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

    return expecting(trained(Recipe(net, cross_entropy, rates), 16), "not_optimized", sites=("net.head*",))
