"""A wrapper sees to every function of an algorithm at once."""

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import get_args, get_origin, get_type_hints

import pytest

from flfast.algorithms.contract import Algorithm, KitFunctions, Record
from flfast.algorithms.kit.wrapping import ARGUMENTS, viewed

OF_NO_WRAPPER = {"kit.place", "predict"}
RECORDS = {"record": Record, "kit": KitFunctions}
KINDS = sorted({kind for kinds in ARGUMENTS.values() for kind in kinds})


def is_function(hint):
    return get_origin(hint) is Callable or getattr(hint, "_is_protocol", False)


def functions():
    """Names of the functions of an algorithm, those within records included."""
    for prefix, kind in {
        "": Algorithm,
        **{f"{name}.": kind for name, kind in RECORDS.items()},
    }.items():
        for name, hint in get_type_hints(kind).items():
            if any(map(is_function, [hint, *get_args(hint)])):
                yield prefix + name


def test_every_function_says_what_it_reads():
    assert {*functions()} == {*ARGUMENTS} | OF_NO_WRAPPER


def echo(*args):
    return args


def echoing():
    """An algorithm whose functions return their arguments."""
    fields = {name: echo for name in ARGUMENTS if "." not in name}
    records = {name: kind(*[echo] * len(kind._fields)) for name, kind in RECORDS.items()}
    return replace(Algorithm(name="echoing"), **fields, **records)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_view_changes_the_arguments_of_its_kind_and_no_other(name):
    given = ("first", *ARGUMENTS[name])  # such as the task, before the last arguments
    for kind in KINDS:
        found = attrgetter(name)(viewed(echoing(), {kind: str.upper}))(*given)
        assert found == tuple(arg.upper() if arg == kind else arg for arg in given), kind


def test_a_download_is_seen_as_a_whole():
    views = {"download": lambda broadcast, client: (f"{broadcast} of {client}", "own")}
    for name, arguments in ARGUMENTS.items():
        found = attrgetter(name)(viewed(echoing(), views))(*arguments)
        both = arguments == ("broadcast", "client")
        assert found == (("broadcast of client", "own") if both else arguments), name


def test_results_are_changed_by_name_and_what_is_missing_stays_missing():
    wrapped = viewed(Algorithm(name="plain"), {"server": dict}, {"broadcast": lambda tree: "sent"})
    assert wrapped.broadcast({"params": {}, "buffers": {}}) == "sent"
    assert (
        wrapped.send is None
        and wrapped.record is None
        and wrapped.round is None
        and not wrapped.stateful
    )
