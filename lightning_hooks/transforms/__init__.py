"""What alters training: inputs normalised, gradients transformed. In plain torch."""

from lightning_hooks.transforms.normalization import Argument, Normalization

__all__ = ["Argument", "Normalization"]
