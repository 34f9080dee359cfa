"""What a model is fed: inputs and repeated batches."""
