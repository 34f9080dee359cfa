"""How much samples of a batch differ in the outputs of a model."""
