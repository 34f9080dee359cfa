"""A bad step kept and run again: which operation failed, and which samples made it fail."""
