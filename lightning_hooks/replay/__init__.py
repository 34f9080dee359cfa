"""The evidence of a bad step, kept; and the step run again: which operation failed, and which samples made it fail."""
