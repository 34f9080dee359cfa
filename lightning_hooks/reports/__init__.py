"""What monitors report: one frozen dataclass per window, its alerts, and both as plain types."""
