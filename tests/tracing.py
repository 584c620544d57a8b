"""Steps as they are compiled."""

from flfast.engines.fused.graph.trace import operators, rewritten


def trace(fn, trees):
    """Trace `fn(*trees)` and rewrite the graph."""
    return rewritten(operators(fn, trees))
