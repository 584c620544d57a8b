"""The server's own upload, which rules such as FLTrust compare those of clients with."""

from dataclasses import replace

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.engines.site import Site


def reference_name(call: str) -> str:
    """Name of the call on the server's own examples that corresponds to a call of clients."""
    return f"reference {call}"


def reference_site(site: Site, algorithm: Algorithm) -> Site:
    """A site where the server does on its own examples what a client does in a call.

    Its upload is whole and weighs 1. It keeps no states: those that it makes are dropped.

    Args:
        site: of the clients.
        algorithm: of the call.
    """
    whole = replace(algorithm, parts={}, weight=None, weighting="uniform")
    return replace(site, keeps_residuals=False).of(whole)


def check_reference(name: str, algorithm: Algorithm, server: int | None) -> None:
    """Refuse a rule that needs an upload of the server's own where there can be none.

    Args:
        name: of the aggregation.
        algorithm: of the run.
        server: number of the server among those who have training examples.

    Raises:
        ValueError: naming key, value and what is allowed.
    """
    if server is None:
        raise ValueError(
            f"aggregation={name} with split.server_examples=0: it compares uploads with what the "
            f"server learns from its own examples; allowed: split.server_examples >= 1"
        )
    if algorithm.send is not None:
        raise ValueError(
            f"aggregation={name} with algorithm={algorithm.name}, which sends every client "
            f"something else, and the server has no part in that; allowed: another aggregation"
        )
