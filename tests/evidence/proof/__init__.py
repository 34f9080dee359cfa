"""All that shows what the alerts are worth, in one table."""
