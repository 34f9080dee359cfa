"""Sounds, series and pictures that need no download, as ``Trainer.fit`` takes them."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor
from torch.nn import functional as F

from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.texts import END, codes_of

SAMPLE_RATE = 2000
"""Samples of a sound per second."""


@functools.cache
def _digits(size: int) -> tuple[Tensor, Tensor]:
    images, classes = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    pixels = F.interpolate(pixels, size=(size, size), mode="bilinear").expand(-1, 3, -1, -1).contiguous()
    return (pixels - pixels.mean()) / pixels.std(), torch.tensor(classes)


def digits_in_colour(size: int, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Digits as pictures in three colours; a batch is ``[pixels, classes]``."""
    return in_batches(batch_size, *_digits(size), seed=seed)


def crops(size: int, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Pieces of scikit-learn's two photographs; a batch is ``[pixels]``."""
    photographs = torch.tensor(load_sample_images().images[0]).permute(2, 0, 1).float()[:, ::4, ::4]
    pieces = photographs.unfold(1, size, 5).unfold(2, size, 5).permute(1, 2, 0, 3, 4).reshape(-1, 3, size, size)
    return in_batches(batch_size, ((pieces - pieces.mean()) / pieces.std()).contiguous(), seed=seed)


def captioned(size: int, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Digits and their names; a batch is ``[pixels, ids]``."""
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    captions = torch.stack([F.pad(codes_of(f"digit {name}"), (0, 12 - len(name) - 6), value=END) for name in names])
    pixels, classes = _digits(size)
    return in_batches(batch_size, pixels, captions[classes], seed=seed)


@functools.cache
def _melodies(notes: int, samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    played = torch.randint(3, 11, (1000, notes), generator=generator)
    times = torch.arange(samples) / SAMPLE_RATE
    frequencies = 100.0 * played.float().repeat_interleave(samples // notes, 1)
    phases = 2 * math.pi * torch.rand(1000, 1, generator=generator)
    sounds = torch.sin(2 * math.pi * frequencies * times[: frequencies.shape[1]] + phases)
    sounds = sounds + 0.1 * torch.randn(sounds.shape, generator=generator)
    return (sounds - sounds.mean(1, keepdim=True)) / sounds.std(1, keepdim=True), played


def melodies(batch_size: int, notes: int = 3, samples: int = 1200, seed: int = 0) -> dict[str, Any]:
    """Sounds of a few notes in noise; a batch is ``[sounds, notes]``, with notes from 3 to 10."""
    return in_batches(batch_size, *_melodies(notes, samples), seed=seed)


def spectrograms(batch_size: int, frames: int = 64, bins: int = 40, seed: int = 0) -> dict[str, Any]:
    """Log spectrograms of the melodies, as Whisper takes them; a batch is ``[features, notes]``."""
    sounds, played = _melodies(3, 1200)
    window = torch.hann_window(2 * bins)
    spectra = torch.stft(sounds, 2 * bins, hop_length=1200 // frames, window=window, return_complex=True).abs()[:, :bins, :frames]
    logs = spectra.clamp_min(1e-3).log10()
    logs = (torch.maximum(logs, logs.max() - 8) + 4) / 4
    return in_batches(batch_size, logs.contiguous(), played, seed=seed)


def series(batch_size: int, past: int, future: int, seed: int = 0) -> dict[str, Any]:
    """Daily and weekly sales, unscaled; a batch is ``[past, future, time of past, time of future]``."""
    generator = torch.Generator().manual_seed(0)
    length, count = past + future, 600
    starts = torch.randint(0, 100, (count, 1), generator=generator)
    times = (starts + torch.arange(length)).float()
    level = 20 * torch.rand(count, 1, generator=generator).exp()
    values = level * (1 + 0.5 * torch.sin(2 * math.pi * times / 7) + 0.1 * torch.randn(count, length, generator=generator))
    features = torch.stack([torch.sin(2 * math.pi * times / 7), times / 100], -1)
    return in_batches(batch_size, values[:, :past], values[:, past:], features[:, :past], features[:, past:], seed=seed)


@functools.cache
def strips(count: int = 1600, length: int = 4) -> tuple[Tensor, Tensor]:
    """Digits side by side, with gaps that differ, and which they are, from 1 to 10."""
    generator = torch.Generator().manual_seed(0)
    images, shown = digits(8)
    chosen = torch.randint(0, len(images), (count, length), generator=generator)
    gaps = torch.randint(0, 4, (count, length), generator=generator)
    lines = torch.full((count, 8, 12 * length), float(images.min()))
    for row in range(count):
        place = 0
        for i in range(length):
            place += int(gaps[row, i])
            lines[row, :, place : place + 8] = images[chosen[row, i], 0]
            place += 8
    return lines, shown[chosen] + 1
