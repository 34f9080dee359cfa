"""How much samples of a batch differ in what a model puts out."""
