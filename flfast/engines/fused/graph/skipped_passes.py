"""Passes that make local steps faster; each can be left out to find the one to blame."""

import os

VARIABLE = "FLFAST_SKIP_PASSES"
"""Environment variable with the passes to leave out, separated by commas; `all` stands for all."""

PASSES = {
    "rewriting": "fewer operators, of torch's own (`rewrite.py`)",
    "pooling": "max-pooling before ReLU (`pooling.py`)",
    "kernels": "our C++ in place of products of few rows (`lowering.py`)",
    "convolutions": "convolution, pool and ReLU as one operator (`pooling.py`)",
    "pulls": "proximal terms in one pass (`lowering.py`)",
    "pointwise": "elementwise operators in one pass over memory (`pointwise.py`)",
    "frozen_layers": "activations of frozen layers are kept (`frozen_layers.py`)",
    "padding": "batches are padded to few sizes (`run/step_schedule.py`)",
}
"""What each pass does. Without `kernels` there are no `pulls`, no `pointwise` and no
`convolutions`; the last also need `pooling`. Without `padding` there are no kept activations of
frozen layers and no parts of a whole batch."""


def skipped() -> frozenset[str]:
    """The passes that the environment variable leaves out.

    Raises:
        ValueError: if the variable names something else.
    """
    names = frozenset(filter(None, os.environ.get(VARIABLE, "").split(",")))
    wrong = sorted(names - {*PASSES, "all"})
    if wrong:
        raise ValueError(f"{VARIABLE}={','.join(wrong)}; allowed: {', '.join(PASSES)}, all")
    return frozenset(PASSES) if "all" in names else names
