"""What clipping does to the gradients of each optimizer step."""
