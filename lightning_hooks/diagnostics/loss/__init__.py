"""The loss of every batch and of validations."""
