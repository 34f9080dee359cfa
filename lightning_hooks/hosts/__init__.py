"""Training loops as a session sees them: what a session asks of a loop, and one module for each loop."""
