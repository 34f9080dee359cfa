"""Checks of a checkpoint: non-finite and constant weights, rows of zeros, the state of optimizers, and whether it fits a model."""

from lightning_hooks.checkpoints.check import CheckedCheckpoint, CheckpointProblem, check_checkpoint, load_checkpoint
from lightning_hooks.checkpoints.loaded import LoadedNames, check_loaded

__all__ = ["CheckedCheckpoint", "CheckpointProblem", "LoadedNames", "check_checkpoint", "check_loaded", "load_checkpoint"]
