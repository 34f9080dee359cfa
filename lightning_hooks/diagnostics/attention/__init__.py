"""The logits and probabilities of attention heads."""
