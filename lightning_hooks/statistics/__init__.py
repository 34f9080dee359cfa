"""Tensors summarised as rows, and rows merged: columns, tables, and the kernels that read tensors."""

from lightning_hooks.statistics.kernels import kernels

__all__ = ["kernels"]
