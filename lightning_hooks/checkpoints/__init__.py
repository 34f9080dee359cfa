"""A checkpoint checked: non-finite and constant weights, rows of zeros, the state of optimizers."""

from lightning_hooks.checkpoints.check import CheckedCheckpoint, CheckpointProblem, check_checkpoint

__all__ = ["CheckedCheckpoint", "CheckpointProblem", "check_checkpoint"]
