"""The same tests for every executor."""

import pytest

from flfast.engines.fused.graph.executor import EXECUTORS, VARIABLE, trial, wanted


def usable():
    """Names of those that pass the trial; of the one alone that the environment asks for."""
    return [name for name in EXECUTORS if name == wanted() or not (wanted() or trial(name))]


@pytest.fixture(scope="module", params=usable())
def each_executor(request):
    """Programs of every executor in turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        yield
