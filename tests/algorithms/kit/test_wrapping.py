"""A wrapper sees to every function of an algorithm at once."""

from collections.abc import Callable
from dataclasses import replace
from typing import get_args, get_origin, get_type_hints

import pytest

from flfast.algorithms.contract.algorithm import ARGUMENTS, Algorithm
from flfast.algorithms.kit.wrapping import viewed

OF_NO_WRAPPER = {"make_optimizer", "place", "predict"}
KINDS = sorted({kind for kinds in ARGUMENTS.values() for kind in kinds})


def is_function(hint):
    return get_origin(hint) is Callable or getattr(hint, "_is_protocol", False)


def functions():
    """Names of the fields that hold a function."""
    for name, hint in get_type_hints(Algorithm).items():
        if any(map(is_function, [hint, *get_args(hint)])):
            yield name


def test_every_function_says_what_it_reads():
    assert {*functions()} == {*ARGUMENTS} | OF_NO_WRAPPER


def echoing():
    """An algorithm whose functions return their arguments."""
    return replace(
        Algorithm(name="echoing"), **dict.fromkeys(ARGUMENTS, lambda *args, **kwargs: args)
    )


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_view_changes_the_arguments_of_its_kind_and_no_other(name):
    given = ("first", *ARGUMENTS[name])  # such as the task, before the last arguments
    for kind in KINDS:
        found = getattr(viewed(echoing(), {kind: str.upper}), name)(*given)
        assert found == tuple(arg.upper() if arg == kind else arg for arg in given), kind


def test_a_download_is_seen_as_a_whole():
    views = {"download": lambda broadcast, client: (f"{broadcast} of {client}", "own")}
    for name, arguments in ARGUMENTS.items():
        found = getattr(viewed(echoing(), views), name)(*arguments)
        both = arguments == ("broadcast", "client")
        assert found == (("broadcast of client", "own") if both else arguments), name


def test_results_are_changed_by_name_and_what_is_missing_stays_missing():
    wrapped = viewed(Algorithm(name="plain"), {"server": dict}, {"broadcast": lambda tree: "sent"})
    assert wrapped.broadcast({"params": {}, "buffers": {}}) == "sent"
    assert wrapped.send is None and wrapped.round is None and not wrapped.stateful
