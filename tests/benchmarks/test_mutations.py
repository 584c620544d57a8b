"""Planted bugs change one place of one module, which is still Python."""

import importlib.util
from pathlib import Path

import pytest

from benchmarks.mutations import MUTATIONS, _Mutated


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_changes_one_place(name):
    mutation = MUTATIONS[name]
    path = importlib.util.find_spec(mutation.module).origin
    source = Path(path).read_text()
    assert source.count(mutation.old) == 1
    assert mutation.new != mutation.old
    code = _Mutated(path, mutation).get_code(mutation.module)
    assert code != compile(source, path, "exec")


def test_a_text_that_is_not_there_is_an_error():
    mutation = MUTATIONS["fedrep_head"]._replace(old="no such text")
    path = importlib.util.find_spec(mutation.module).origin
    with pytest.raises(ValueError, match="does not have once: no such text"):
        _Mutated(path, mutation).get_code(mutation.module)
