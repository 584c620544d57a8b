"""One server for all clients."""


def star() -> None:
    """No nodes between: the algorithm is as it is."""
