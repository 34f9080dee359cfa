"""The metrics of the user's model, and how they are used; metrics of what modules put out."""
