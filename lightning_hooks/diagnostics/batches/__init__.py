"""Batches: the inputs of a model, and batches that repeat."""
