"""Bugs that cost other people weeks, rebuilt at tiny sizes with their twins, and healthy programs of PyTorch's examples."""
