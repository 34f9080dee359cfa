"""Receivers of windows and alerts during a run: the Health tab of TensorBoard, webhooks, notebooks."""
