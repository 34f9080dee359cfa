"""Faults of modern recipes; ranks that get the same batch are proven in ``tests/callbacks/ranks``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.faults import data, nets
from tests.evidence.faults.nets_modern import VQVAE, Averaged, Decoder, PostNorm, RowEncoder, with_lora
from tests.evidence.faults.tasks import Adversarial, Manual, Supervised, Task, accuracy, adam, adamw, cross_entropy, sgd
from tests.evidence.faults.zoo import Built, Expected, fault, worse

EPOCHS = {"max_epochs": 3}


def text(module: Task, seed: int, expected: Expected, batch: int = 32, **kwargs: Any) -> Built:
    """A training on characters."""
    return Built(module, data.loaders(data.text(n=640), batch, seed), {**EPOCHS, **kwargs}, expected)


def digits(module: Task, seed: int, expected: Expected, batch: int = 64, rows: bool = False, **kwargs: Any) -> Built:
    """A training on images of digits."""
    split = data.digits(shape=(8, 8) if rows else (64,))
    return Built(module, data.loaders(split, batch, seed), {**EPOCHS, **kwargs}, expected)


@fault("transformer", "queries and keys at 100 times the learning rate: attention logits grow", reaches=0.22, hurts=None)
def logits_grow(seed: int, planted: bool = True) -> Built:
    def groups(module: nn.Module) -> torch.optim.Optimizer:
        fast = [p for name, p in module.named_parameters() if "q_proj" in name or "k_proj" in name]
        rest = [p for name, p in module.named_parameters() if "q_proj" not in name and "k_proj" not in name]
        return torch.optim.AdamW([{"params": rest}, {"params": fast, "lr": 1e-2 * (100 if planted else 1)}], lr=1e-2)

    expected = Expected(("attention_logits", "attention_collapse", "update_too_large"), ("net.layers.?.attention*",))
    return text(Supervised(Decoder(), groups), seed, expected)


class Sparse(Supervised):
    """Adds the losses for balance of all layers, weighed; with ``detached`` they have no gradient."""

    def __init__(self, net: nn.Module, detached: bool, router_lr: float) -> None:
        super().__init__(net, self.groups, self.with_balance)
        self.detached, self.router_lr = detached, router_lr

    def groups(self, module: nn.Module) -> torch.optim.Optimizer:
        router = [p for name, p in module.named_parameters() if "router" in name]
        rest = [p for name, p in module.named_parameters() if "router" not in name]
        return torch.optim.AdamW([{"params": rest}, {"params": router, "lr": self.router_lr}], lr=1e-2)

    def with_balance(self, output: Tensor, target: Tensor) -> Tensor:
        balance = torch.stack([layer.mlp.balance for layer in self.net.layers]).mean()  # type: ignore[union-attr]
        return cross_entropy(output, target) + 0.1 * (balance.detach() if self.detached else balance)


@fault("transformer", "a loss for balance that is detached, and a fast router: it chooses few experts", reaches=0.22, hurts=None)
def balance_without_gradient(seed: int, planted: bool = True) -> Built:
    module = Sparse(Decoder(sparse=True), planted, 0.3 if planted else 1e-2)
    expected = Expected(("router_collapse", "dead_experts", "update_too_large"), ("net.layers.?.mlp*",))
    return text(module, seed, expected)


def summed(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, added up over the batch."""
    return F.cross_entropy(output, target, reduction="sum")


@fault("MLP", "a loss that is summed over the batch instead of averaged", reaches=0.8, hurts=worse(0.1))
def loss_summed(seed: int, planted: bool = True) -> Built:
    net = nets.mlp((64, 64, 64, 10), nn.GELU, init=nn.init.kaiming_normal_)
    expected = Expected(("step_too_long", "update_too_large", "exploding", "loss_diverging", "loss_spike"))
    return digits(Supervised(net, sgd(0.1, 0.9), summed if planted else cross_entropy), seed, expected)


class Accumulated(Manual):
    """A step every eighth batch of a manual loop; divided by eight, or not."""

    def __init__(self, net: nn.Module, divisor: int) -> None:
        super().__init__(net, sgd(0.1, 0.9))
        self.divisor = divisor

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        self.manual_backward(self.note(self.loss(self.net(batch[0]), batch[1])) / self.divisor)
        if batch_idx % 8 == 7:
            optimizer.step()
            optimizer.zero_grad()


@fault("MLP", "a manual loop that adds up eight gradients and does not divide them", reaches=0.75, hurts=worse(0.1))
def accumulation_not_divided(seed: int, planted: bool = True) -> Built:
    net = nets.mlp((64, 64, 64, 64, 10), nn.GELU, init=nn.init.kaiming_normal_)
    expected = Expected(("step_too_long", "update_too_large", "exploding", "loss_diverging", "loss_spike"))
    return digits(Accumulated(net, 1 if planted else 8), seed, expected, batch=16)


class MeanTeacher(Supervised):
    """A student that learns with noise; its teacher, the average of its weights, is what is used."""

    def __init__(self, decay: float) -> None:
        super().__init__(
            Averaged(nets.mlp((64, 64, 64, 10), nn.GELU)), lambda module: torch.optim.AdamW(module.net.student.parameters(), 3e-3)
        )
        self.decay = decay

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        taught = self.net.teacher(x).softmax(-1)  # type: ignore[operator,union-attr]
        noisy = self.net.student(x + 0.1 * torch.randn_like(x))  # type: ignore[operator,union-attr]
        return self.note(cross_entropy(noisy, y) + 0.1 * F.mse_loss(noisy.softmax(-1), taught))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.net.follow(self.decay)  # type: ignore[operator,union-attr]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.note_score(accuracy(self.net.teacher(batch[0]), batch[1]))  # type: ignore[operator,union-attr]


@fault("MLP", "a teacher that is to follow its student, with a decay of 1: it never moves", reaches=0.8, hurts=worse(0.5))
def teacher_stands_still(seed: int, planted: bool = True) -> Built:
    return digits(MeanTeacher(1.0 if planted else 0.9), seed, Expected(("module_copy",), ("net.teacher*",)))


class Codes(Task):
    """A VQ-VAE; its score is the explained variance of the pixels."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        output, commitment = self.net(batch[0])
        return self.note(10 * F.mse_loss(output, batch[0]) + commitment)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x = batch[0]
        self.note_score(1 - (self.net(x)[0] - x).square().sum() / (x - x.mean(0)).square().sum())


@fault("VAE", "a codebook that learns 400 times too fast: its codes fly off, and few remain", reaches=0.2, hurts=worse(0.1))
def codebook_collapse(seed: int, planted: bool = True) -> Built:
    net = VQVAE()
    nn.init.normal_(net.quantizer.codebook.weight, std=0.2)

    def groups(module: nn.Module) -> torch.optim.Optimizer:
        rest = [p for name, p in module.named_parameters() if "codebook" not in name]
        codebook = {"params": [net.quantizer.codebook.weight], "lr": 2.0 if planted else 5e-3}
        return torch.optim.Adam([{"params": rest}, codebook], lr=5e-3)

    expected = Expected(
        ("update_too_large", "representation_collapse", "constant", "router_collapse"), ("net.quantizer*", "net.decoder*")
    )
    return digits(Codes(net, groups), seed, expected, max_epochs=6)


class StrongDiscriminator(Adversarial):
    """The first loss of the paper, and a discriminator that takes three large steps for one of the generator."""

    def __init__(self) -> None:
        super().__init__(discriminator_lr=5e-2)

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        images, (optimizer_g, optimizer_d) = batch[0], self.optimizers()  # type: ignore[misc]
        for _ in range(3):
            fake = self.net["generator"](torch.randn(len(images), 16))  # type: ignore[index]
            loss_d = self.judge(images, True) + self.judge(fake.detach(), False)
            optimizer_d.zero_grad()
            self.manual_backward(loss_d)
            optimizer_d.step()
        self.note(loss_d)
        optimizer_g.zero_grad()
        self.manual_backward(-self.judge(fake, False))
        optimizer_g.step()


@fault("GAN", "a discriminator that is always right, and the loss that then has no gradient", reaches=0.2, hurts=None)
def discriminator_too_strong(seed: int, planted: bool = True) -> Built:
    # Against a perfect discriminator gradients vanish or have no stable size (Arjovsky and Bottou 2017, arXiv 1701.04862).
    expected = Expected(("vanishing", "exploding", "update_too_small", "zero"))
    return digits(StrongDiscriminator() if planted else Adversarial(), seed, expected, max_epochs=5)


def adapted(zero: bool) -> nn.Module:
    """A decoder that has learned a little, with adapters."""
    net = Decoder()
    x, y, _, _ = data.text(n=640)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for batch in torch.arange(len(x)).split(32):
        optimizer.zero_grad()
        cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
    with_lora(net, ("q_proj", "v_proj", "down_proj"))
    if zero:
        for name, parameter in net.named_parameters():
            if "lora_A" in name:
                nn.init.zeros_(parameter)
    return net


@fault("transformer", "LoRA with both matrices at zero: neither gets a gradient", reaches=0.17, hurts=worse(0.01))
def lora_of_zeros(seed: int, planted: bool = True) -> Built:
    expected = Expected(("zero", "constant", "not_updated", "poor_init"), ("*lora_?*",))
    return text(Supervised(adapted(planted), adamw(1e-2)), seed, expected)


@fault("transformer", "positions that are looked up and not added", reaches=0.7, hurts=None)
def positions_not_added(seed: int, planted: bool = True) -> Built:
    expected = Expected(("missing", "silent"), ("net.position*",))
    return digits(Supervised(RowEncoder(not planted), adam(5e-3)), seed, expected, rows=True)


class WarmUp(Supervised):
    """The learning rate rises over the first steps."""

    def __init__(self, net: nn.Module, lr: float, steps: int) -> None:
        super().__init__(net, adam(lr))
        self.steps = steps

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / self.steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@fault("transformer", "four post-norm layers at a learning rate of 0.03 without a warm-up", reaches=0.17, hurts=worse(0.02))
def post_norm_without_warm_up(seed: int, planted: bool = True) -> Built:
    expected = Expected(("update_too_large", "dead", "representation_collapse", "vanishing"))
    return text(WarmUp(PostNorm(), 3e-2 if planted else 8e-3, 1 if planted else 20), seed, expected)


@fault("transformer", "Adam with a beta2 of 0.1: each step is divided by the last gradient alone", reaches=0.22, hurts=worse(0.1))
def beta2_too_small(seed: int, planted: bool = True) -> Built:
    def configure(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(module.parameters(), lr=1e-2, betas=(0.9, 0.1 if planted else 0.95))

    return text(Supervised(Decoder(), configure), seed, Expected(("optimizer_settings",)))
