"""What every layer puts out, with dead units and saturation."""
