"""Models of clients' devices: how fast they are, when they are available, how often they fail."""
