"""How a model and its training are set up."""
