"""Opens saved runs: their models predict again, and are exported."""
