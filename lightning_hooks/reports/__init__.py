"""What monitors report: one frozen dataclass per window, the alerts in it, and both as plain types."""
