"""What each optimizer does."""
