"""The same tests for every executor."""

import pytest

from flfast.engines.fused.graph.executor import VARIABLE, wanted
from flfast.state.native.compiler import missing


def usable():
    """Names of those that can run; of the one alone that the environment asks for."""
    return [wanted()] if wanted() else ["tape"] * (missing() is None) + ["straight-line"]


@pytest.fixture(scope="module", params=usable())
def each_executor(request):
    """Programs of every executor in turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        yield
