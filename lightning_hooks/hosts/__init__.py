"""Training loops, as a session sees them: what is asked of each, and one module for each loop."""
