"""The user's own metrics of what modules put out."""
