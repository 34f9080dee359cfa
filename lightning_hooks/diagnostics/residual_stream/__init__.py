"""The residual stream of a model that is a stack of blocks."""
