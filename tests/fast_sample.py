"""The part of a large parametrisation that README's test command runs."""

from collections.abc import Sequence
from typing import Any

import pytest


def others_slow(cases: Sequence[Any], fast: Sequence[Any]) -> list[Any]:
    """The cases of a parametrisation; all that are not in `fast` are marked slow.

    Args:
        cases: arguments of a test; a tuple has one value for each argument.
        fast: those that show the property; they should use every value of an argument.
    """

    def case_of(case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=() if case in fast else pytest.mark.slow)

    return [case_of(case) for case in cases]
