"""What a diagnostic is declared with: collectors and what they ask of a session, kinds, rules and alerts."""
