"""Values that are NaN or infinite."""
