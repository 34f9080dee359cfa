"""Everything that belongs to one training run, in plain torch: hooks, optimizer steps, windows, alerts, and what sinks receive."""
