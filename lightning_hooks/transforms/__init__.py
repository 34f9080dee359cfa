"""Normalisation of inputs and transforms of gradients, which alter training, in plain torch."""
