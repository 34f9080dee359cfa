"""Gradients at module outputs and of parameters, and updates of weights."""
