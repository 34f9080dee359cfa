"""Whether a training learns, and what of it."""
