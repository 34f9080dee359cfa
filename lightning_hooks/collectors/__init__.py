"""What the monitors measure, in plain torch: each collector fills one table, and makes one report of it per window."""
