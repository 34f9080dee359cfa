"""What losses are given: predictions, targets and labels."""
