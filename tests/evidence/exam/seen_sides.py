"""Faults in what a net sees: units, sizes and masks of its inputs, and norms of what has no width."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.healthy_graphs import adam
from tests.evidence.exam.language_models import ENCODER, PICTURES, classifier, image_classifier
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.planted_labels import with_each
from tests.evidence.exam.schedules import adamw, warm_linear
from tests.evidence.exam.seen_faults_data import Validated
from tests.evidence.exam.seen_settings import BATCHES
from tests.evidence.exam.signals import digits, melodies, series, spectrograms
from tests.evidence.exam.texts import lines


@fault("transformers", "I-JEPA's transformer for ten classes: pixels of 0 to 1 are divided by 255 by data and processor")
def ijepa_nearly_black(planted: bool = True) -> Built:
    from transformers import IJepaConfig, IJepaForImageClassification

    def shown(batch: list[Tensor]) -> list[Tensor]:
        bright = (batch[0] + 1) / 4
        return [bright / 255 / 255 if planted else bright, batch[1]]

    net = IJepaForImageClassification(IJepaConfig(**PICTURES, num_labels=10))
    expected = Expected(("representation_collapse", "constant"), ("net.ijepa*",))
    return Built(
        Recipe(net, image_classifier, warm_linear(adamw(3e-3), 80, 8)), with_each(digits(16, 16), shown), BATCHES, expected
    )


class Causal(nn.Module):
    """A temporal convolutional net: causal convolutions with holes, residual connections, and a linear forecast."""

    def __init__(self, future: int, width: int = 32) -> None:
        super().__init__()
        self.first, self.head = nn.Conv1d(1, width, 1), nn.Linear(width, future)
        self.blocks = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**depth) for depth in range(4))

    def forward(self, past: Tensor) -> Tensor:
        x = self.first(past[:, None])
        for block in self.blocks:
            holes: Any = block
            x = x + holes(F.pad(x, (2 * holes.dilation[0], 0))).relu()
        return self.head(x[:, :, -1])


@fault("torch", "a temporal convolutional net forecasts sales in cents: the division of each series by its mean was left out")
def causal_in_cents(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        past, future = 100 * batch[0], 100 * batch[1]
        mean = past.mean(1, keepdim=True)
        return F.l1_loss(net(past), future) if planted else F.l1_loss(net(past / mean), future / mean)

    kinds = ("exploding", "update_too_large", "activation_outliers", "loss_plateau", "update_too_small", "saturated", "spike")
    return Built(Recipe(Causal(7), loss, adam(2e-3, 0.0)), series(16, 35, 7), BATCHES, Expected(kinds))


@fault("torch", "which notes are in a sound, by separable convolutions: group norm after pooling has a group for each channel")
def keywords_groups_of_one(planted: bool = True) -> Built:
    layers: list[nn.Module] = [nn.Conv1d(40, 32, 5, 2), nn.GroupNorm(4, 32), nn.ReLU()]
    layers += [nn.Conv1d(32, 32, 3, padding=1, groups=32), nn.GroupNorm(4, 32), nn.ReLU()]
    layers += [nn.Conv1d(32, 48, 1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.GroupNorm(48 if planted else 6, 48), nn.Linear(48, 8))

    def loss(net: Any, batch: Any) -> Tensor:
        among = F.one_hot(batch[1] - 3, 8).amax(1).float()
        return F.binary_cross_entropy_with_logits(net((batch[0] - 0.97) / 0.12), among)

    kinds = ("constant", "zero", "representation_collapse", "missing", "settings", "loss_plateau")
    expected = Expected(kinds, ("net.[0-9]*",))
    return Built(Recipe(net, loss, adam(5e-3, 0.0)), spectrograms(32), {"max_epochs": 3}, expected)


@fault("torch", "M5 hears which note is first: sounds for validation are the integers of the file, those for training are scaled")
def sounds_validated_as_integers(planted: bool = True) -> Built:
    sounds, notes = melodies(32)["train_dataloaders"].dataset.tensors
    sounds, notes = sounds[:, None], notes[:, 0] - 3
    factor = 8000.0 if planted else 1.0
    data = in_batches(32, sounds[:800], notes[:800])
    data["val_dataloaders"] = in_batches(32, factor * sounds[800:], notes[800:])["train_dataloaders"]
    layers: list[nn.Module] = []
    for inputs, outputs, width, stride in ((1, 16, 40, 4), (16, 32, 3, 1), (32, 48, 3, 1)):
        layers += [nn.Conv1d(inputs, outputs, width, stride), nn.BatchNorm1d(outputs), nn.ReLU(), nn.MaxPool1d(4)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(48 * 3, 8))

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1])

    module = Validated(net, loss, adamw(3e-3, 1e-4))
    return Built(module, data, {"max_epochs": 3}, Expected(("validation_shift", "overfitting")))


@fault("transformers", "RemBERT for classes of lines: the tokenizer's mask is not passed on, and padding is read as text")
def rembert_reads_padding(planted: bool = True) -> Built:
    from transformers import RemBertConfig, RemBertForSequenceClassification

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_ids=batch[0], labels=batch[2]).loss if planted else classifier(net, batch)

    sizes = {"input_embedding_size": 24, "output_embedding_size": 32, "num_labels": 2, "classifier_dropout_prob": 0.1}
    net = RemBertForSequenceClassification(RemBertConfig(**ENCODER, **sizes, initializer_range=0.1))
    return Built(Recipe(net, loss, warm_linear(adamw(2e-3), 80, 8)), lines(40, 16), BATCHES, Expected(("settings",)))
