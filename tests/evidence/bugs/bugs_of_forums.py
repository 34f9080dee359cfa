"""Bugs of forum and issue threads, each with its twin."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.bugs.cases import Built, Expected, Recipe, bug
from tests.evidence.bugs.parts import EPOCHS, ByHand, Cnn, Digits, adam, classify, diabetes, digits, loader, mlp
from tests.evidence.faults import data

# Losses.


@bug("discuss.pytorch.org/t/cross-entropy-loss-is-not-decreasing/43814", "a softmax before CrossEntropyLoss")
def softmax_before_loss(planted: bool = True) -> Built:
    net = nn.Sequential(mlp(), nn.Softmax(dim=1) if planted else nn.Identity())
    return Built(Digits(net), digits(), EPOCHS, Expected(("double_softmax", "output_range")))


@bug("avBuffer/UNet3plus_pth#23", "a sigmoid before BCEWithLogitsLoss: the loss does not fall")
def sigmoid_before_loss(planted: bool = True) -> Built:
    x, y, _, _ = data.cancer()

    def loss(net: Any, batch: Any) -> Tensor:
        output = net(batch[0])
        return F.binary_cross_entropy_with_logits(torch.sigmoid(output) if planted else output, batch[1])

    module = Recipe(mlp(1, 30), loss, adam())
    loaders = {"train_dataloaders": loader(x, y[:, None].float(), batch_size=16)}
    return Built(module, loaders, EPOCHS, Expected(("double_softmax", "output_range")))


@bug("pytorch/pytorch#16045", "mse_loss of outputs of shape (n, 1) and targets of shape (n,): every pair is compared")
def targets_broadcast(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        output = net(batch[0])
        return F.mse_loss(output if planted else output.squeeze(1), batch[1])

    module = Recipe(mlp(1, 10), loss, adam())
    return Built(module, diabetes(), {"max_epochs": 4}, Expected(("output_range", "representation_collapse")))


class StatisticsPooling(nn.Module):
    """Mean and standard deviation over the columns of an image."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        variance = x.var(-1, unbiased=False)
        return torch.cat((x.mean(-1), (variance + self.eps).sqrt()), -1).flatten(1)


@bug("pytorch/pytorch#4320", "the standard deviation of rows that are constant: NaN in the backward pass")
def deviation_of_constants(planted: bool = True) -> Built:
    convolution = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
    net = nn.Sequential(convolution, StatisticsPooling(0.0 if planted else 1e-5), nn.Linear(128, 10))
    return Built(Digits(net), digits(image=True), EPOCHS, Expected(("nonfinite", "loss_nonfinite")))


@bug("huggingface/torchMoji#21", "outputs.data, and a loss made a leaf by requires_grad=True: nothing learns")
def outputs_without_graph(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        found = classify(net, batch)
        return found.detach().requires_grad_() if planted else found

    return Built(Digits(mlp(), loss=loss), digits(), EPOCHS, Expected(("missing",)))


@bug("rimchang/Faster-RCNN-Pytorch-Simple#2", "one of two heads has its loss taken of .data: that head gets no gradient")
def head_without_graph(planted: bool = True) -> Built:
    net = nn.ModuleDict({"body": mlp(32), "classes": nn.Linear(32, 10), "boxes": nn.Linear(32, 2)})

    def loss(net: Any, batch: Any) -> Tensor:
        features = torch.relu(net["body"](batch[0]))
        boxes = net["boxes"](features)
        centre = batch[0].view(-1, 2, 32).mean(2)
        return F.cross_entropy(net["classes"](features), batch[1]) + F.smooth_l1_loss(boxes.data if planted else boxes, centre)

    loaders = {"train_dataloaders": digits()["train_dataloaders"]}
    return Built(Recipe(net, loss, adam()), loaders, EPOCHS, Expected(("missing",), ("net.boxes*",)))


# Optimizers and schedules.


@bug("pytorch/pytorch#65417", "OneCycleLR stepped once per epoch: the learning rate stays at the foot of its warm-up")
def one_cycle_per_epoch(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        steps = module.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch" if planted else "step"}}

    return Built(Digits(mlp(), optimizers), digits(), {"max_epochs": 4}, Expected(("lr_zero",)))


@bug("ivadomed/ivadomed#55", "a schedule made for epochs is stepped at every batch: the learning rate is soon gone")
def schedule_per_batch(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step" if planted else "epoch"}}

    expected = Expected(("lr_zero", "update_too_small", "updates_lost"), None, batch=26)
    return Built(Digits(mlp(), optimizers), digits(), {"max_epochs": 5}, expected)


@bug("microsoft/nni#4521", "an optimizer that was built before layers were replaced: it holds the old ones")
def optimizer_of_replaced_layers(planted: bool = True) -> Built:
    net = Cnn()

    def optimizers(module: Any) -> Any:
        old = [*net.body.parameters(), *copy.deepcopy(net.head).parameters()]
        return torch.optim.Adam(old if planted else net.parameters(), lr=2e-3)

    return Built(Digits(net, optimizers), digits(image=True), EPOCHS, Expected(("not_optimized",), ("net.head*",)))


@bug("zjunlp/HVPNeT#5", "a parameter group that is made, but not added to the list that the optimizer gets")
def group_not_added(planted: bool = True) -> Built:
    net = Cnn()

    def optimizers(module: Any) -> Any:
        groups = [{"params": [*net.body[0].parameters(), *net.head.parameters()], "lr": 2e-3}]
        rest = {"params": [p for layer in net.body[1:] for p in layer.parameters()], "lr": 1e-3}
        if not planted:
            groups.append(rest)
        return torch.optim.AdamW(groups)

    return Built(Digits(net, optimizers), digits(image=True), EPOCHS, Expected(("not_optimized",), ("net.body.[1-9]*",)))


class OwnScaler(ByHand):
    """Mixed precision by hand; gradients are clipped while they are still scaled, or after ``unscale_``."""

    def __init__(self, net: nn.Module, unscales: bool) -> None:
        super().__init__(net)
        self.unscales = unscales
        self.scaler = torch.amp.GradScaler("cpu")

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        self.manual_backward(self.scaler.scale(self.loss(batch)))
        if self.unscales:
            self.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        self.scaler.step(optimizer)
        self.scaler.update()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


@bug(
    "milesial/Pytorch-UNet#468",
    "gradients are clipped before they are unscaled: a step of 1/65536 of what was meant",
)
def clipped_while_scaled(planted: bool = True) -> Built:
    return Built(OwnScaler(mlp(), not planted), digits(), EPOCHS, Expected(("always_clipped", "update_too_small")))


class Accumulates(ByHand):
    """Steps after four batches, and calls ``zero_grad`` before each backward or after the step."""

    def __init__(self, net: nn.Module, each: bool) -> None:
        super().__init__(net)
        self.each = each

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        if self.each:
            optimizer.zero_grad()
        self.manual_backward(self.loss(batch) / 4)
        if batch_idx % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@bug(
    "tientrandinh/Revisiting-Reverse-Distillation#12",
    "zero_grad before every backward of an accumulation: three of four batches are thrown away",
)
def accumulation_thrown_away(planted: bool = True) -> Built:
    return Built(Accumulates(mlp(), planted), digits(batch_size=12), EPOCHS, Expected(("not_zeroed",)))


# Modes and modules.


class ForgetsTraining(Digits):
    """Overrides the hook in which Lightning goes back to training mode after a validation."""

    def on_validation_model_train(self) -> None:
        pass


@bug("wkentaro/pytorch-fcn#56", "a validation that leaves the net in eval mode")
def eval_mode_after_validation(planted: bool = True) -> Built:
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    kind = ForgetsTraining if planted else Digits
    return Built(kind(net), digits(), {"max_epochs": 3}, Expected(("eval_mode",), None, batch=29, epoch=1))


@bug("pytorch/pytorch#11999", "F.dropout without training=self.training drops in evaluation too")
def functional_dropout_in_evaluation(planted: bool = True) -> Built:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.first(x))
            return self.second(F.dropout(x, 0.3) if planted else F.dropout(x, 0.3, training=self.training))

    return Built(Digits(Net()), digits(), EPOCHS, Expected(("dropout_in_eval",), ("net*",)))


@bug("yangze0930/NTS-Net#14", "nn.Dropout made anew in forward: always in training mode")
def dropout_made_in_forward(planted: bool = True) -> Built:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop, self.second = nn.Linear(64, 64), nn.Dropout(0.3), nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.first(x))
            return self.second(nn.Dropout(0.3)(x) if planted else self.drop(x))

    return Built(Digits(Net()), digits(), EPOCHS, Expected(("dropout_in_eval",), ("net*",)))


@bug("pytorch/pytorch#715", "layers in a Python list: no parameters of the model")
def layers_in_a_list(planted: bool = True) -> Built:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden = [nn.Linear(64, 64) for _ in range(2)]
            self.hidden: Any = hidden if planted else nn.ModuleList(hidden)
            self.classifier = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.hidden:
                x = torch.relu(layer(x))
            return self.classifier(x)

    return Built(Digits(Net()), digits(), EPOCHS, Expected(("unregistered",)))


class Teacher(Recipe):
    """Learns to predict what a slow copy of itself puts out for another view; the copy is moved at each batch, or never."""

    def __init__(self, moves: bool) -> None:
        body = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
        net = nn.ModuleDict({"student": body, "predictor": nn.Linear(16, 16), "teacher": copy.deepcopy(body).requires_grad_(False)})
        super().__init__(net, self.agreement, adam())
        self.moves = moves

    def agreement(self, net: Any, batch: Any) -> Tensor:
        first, second = (batch[0] + 0.2 * torch.randn_like(batch[0]) for _ in range(2))
        return 1 - F.cosine_similarity(net["predictor"](net["student"](first)), net["teacher"](second)).mean()

    def on_train_batch_end(self, *args: Any) -> None:
        if self.moves:
            with torch.no_grad():
                for slow, fast in zip(self.net["teacher"].parameters(), self.net["student"].parameters(), strict=True):
                    slow.lerp_(fast, 0.05)


@bug("huggingface/pytorch-image-models#1831", "a teacher that should follow its student, and never does")
def teacher_never_moves(planted: bool = True) -> Built:
    loaders = {"train_dataloaders": digits()["train_dataloaders"]}
    return Built(Teacher(not planted), loaders, EPOCHS, Expected(("module_copy",), ("net.teacher*",)))
