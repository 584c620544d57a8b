"""The part of a large parametrisation that README's test command runs."""

from collections.abc import Sequence
from typing import Any

import pytest


def others_slow(cases: Sequence[Any], fast: Sequence[Any]) -> list[Any]:
    """The cases of a parametrisation; all that are not in `fast` are marked slow.

    Args:
        cases: arguments of a test, a tuple each if there are several.
        fast: those that show the property; they should use every value of an argument.
    """

    def slow(case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=pytest.mark.slow)

    return [case if case in fast else slow(case) for case in cases]
