"""docs/callbacks.md says which hooks there are, what they get, and which callbacks work."""

import inspect
import re
from pathlib import Path

import lightning.pytorch.callbacks as shipped
from pages import page

from flfast.federation import loop
from flfast.federation.hooks import HOOKS
from flfast.federation.loop import Federation
from flfast.output.callbacks import clients_table, final_weights, progress
from flfast.setup.callbacks import _REFUSED

PAGE = page("callbacks")


def signatures():
    """Parameters of each hook by its name, as the page has them."""
    found = re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE, re.M)
    return {name: [word for word in text.split(", ") if word] for name, text in found}


def test_the_page_has_all_hooks_in_the_order_of_their_calls():
    assert tuple(signatures()) == HOOKS


def test_the_loop_calls_each_hook_with_as_many_arguments():
    calls = re.findall(r'_call_hooks\("(\w+)"((?:, \w+)*)\)', Path(loop.__file__).read_text())
    passed = {name: ["federation", *re.findall(r"\w+", args)] for name, args in calls}
    assert passed.pop("on_turn")  # of flfast's own callbacks
    expected = signatures()
    assert {*expected} - {*passed} == {"on_client_end", "on_run_end", "close"}
    assert passed == {name: expected[name] for name in passed}


def test_hooks_of_our_callbacks_have_these_parameters():
    kinds = {*kinds_of(progress), *kinds_of(clients_table), *kinds_of(final_weights)}
    for kind in kinds:
        for name, parameters in signatures().items():
            if method := vars(kind).get(name):
                assert [*inspect.signature(method).parameters][1:] == parameters, (kind, name)


def kinds_of(module):
    return [kind for kind in vars(module).values() if inspect.isclass(kind)]


def test_the_object_that_hooks_get_has_what_the_page_says():
    for name, call in re.findall(r"^\| `federation\.(\w+)(\(\))?`", PAGE, re.M):
        if call:
            assert callable(vars(Federation)[name])
        else:
            assert name in Federation.__dataclass_fields__


def test_each_callback_of_lightning_is_in_one_of_the_tables():
    kinds = {
        name
        for name, kind in vars(shipped).items()
        if inspect.isclass(kind) and issubclass(kind, shipped.Callback)
    }
    works, refused = (
        {*re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", part, re.M)))}
        for part in PAGE.partition("## Callbacks that Lightning ships")[2].split("All others")
    )
    bases = {"Callback", "Checkpoint", "ProgressBar"}
    assert works | refused == kinds - bases
    named = {kind.__name__ for kind in _REFUSED}
    assert named - bases <= refused
    assert not named & works
