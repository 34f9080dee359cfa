"""Pictures for vision models: scikit-learn's digits, enlarged; and the data sets that single faults need."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset


@functools.cache
def digits(size: int = 32, channels: int = 1) -> tuple[Tensor, Tensor]:
    """1797 pictures of mean 0 and standard deviation 1, shape ``(1797, channels, size, size)``, and what they show."""
    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8)
    images = F.interpolate(images, size=(size, size), mode="bilinear") if size != 8 else images
    return ((images - images.mean()) / images.std()).expand(-1, channels, -1, -1), torch.tensor(y)


def in_batches(batch_size: int, *tensors: Tensor, seed: int = 0, drop_last: bool = True, **options: Any) -> dict[str, Any]:
    """The rows of these tensors, shuffled, as ``Trainer.fit`` takes them."""
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(TensorDataset(*tensors), batch_size, shuffle=True, drop_last=drop_last, generator=generator, **options)
    return {"train_dataloaders": loader}


def pictures(batch_size: int, size: int = 32, channels: int = 1) -> dict[str, Any]:
    """Batches of pictures and of what they show."""
    return in_batches(batch_size, *digits(size, channels))


class Views(Dataset[tuple[Tensor, ...]]):
    """Several views of each picture: shifted, noisier, with another contrast."""

    def __init__(self, views: int = 2, size: int = 16) -> None:
        self.views, self.images = views, digits(size)[0]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(self._view(self.images[index]) for _ in range(self.views))

    def _view(self, image: Tensor) -> Tensor:
        shift = torch.randint(-3, 4, (2,)).tolist()
        contrast = 0.7 + 0.6 * torch.rand(1)
        return image.roll(shift, (1, 2)) * contrast + 0.2 * torch.randn_like(image)


def views(batch_size: int, number: int = 2) -> dict[str, Any]:
    """Batches of several views of the same pictures."""
    return {"train_dataloaders": DataLoader(Views(number), batch_size, shuffle=True, drop_last=True)}


class Changed(Dataset[tuple[Tensor, ...]]):
    """A data set whose samples pass through a function of their index and themselves."""

    def __init__(self, tensors: Sequence[Tensor], change: Callable[[int, tuple[Tensor, ...]], tuple[Tensor, ...]]) -> None:
        self.rows, self.change = TensorDataset(*tensors), change

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.change(index, self.rows[index])


class Again:
    """The first batch of a loader, again and again."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.first = loader, next(iter(loader))

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        return iter([self.first] * len(self))
