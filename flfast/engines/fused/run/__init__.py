"""Local training of clients with traced local steps: schedules, rows of examples and state."""
