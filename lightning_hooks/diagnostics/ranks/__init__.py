"""Whether ranks hold the same parameters."""
