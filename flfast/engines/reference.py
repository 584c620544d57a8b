"""The server's own upload, which rules such as FLTrust compare those of clients with."""

from dataclasses import replace

from flfast.algorithms.contract import Algorithm
from flfast.engines.site import Site


def reference_name(call: str) -> str:
    """Name of the call on the server's own examples that corresponds to a call of clients."""
    return f"reference {call}"


def reference_site(site: Site, algorithm: Algorithm) -> Site:
    """A site where the server does on its own examples what a client does in a call.

    Its upload is whole and weighs 1. It keeps no states: those that it makes are dropped.
    """
    whole = replace(algorithm, parts={}, weight=None, weighting="uniform")
    return replace(site, keeps_residuals=False).of(whole)
