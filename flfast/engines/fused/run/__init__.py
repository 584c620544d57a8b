"""Clients' local training, by programs of the local step."""
