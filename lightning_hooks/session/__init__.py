"""What belongs to one training run, in plain torch: hooks, optimizer steps, windows, alerts, and what is published and recorded."""
