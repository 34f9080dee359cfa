"""What receives a run's windows and alerts while it goes on: the Health tab of TensorBoard, webhooks, notebooks."""
