"""Calls of softmax and dropout, and the precision of matrix products."""
