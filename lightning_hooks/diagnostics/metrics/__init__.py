"""The metrics of the user's model, and how they are used."""
