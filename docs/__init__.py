"""What makes the generated pages and the figures of the documentation site."""
