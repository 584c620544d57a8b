"""docs/callbacks.md says which hooks there are, what they get, and which callbacks work."""

import inspect
import re

import lightning.pytorch.callbacks as shipped
from pages import page

from flfast.federation.hooks import HOOKS, FederatedRun, Hooks
from flfast.federation.loop import Federation
from flfast.setup.callbacks import _REFUSED

PAGE = page("callbacks")


def test_hooks_have_the_order_and_the_parameters_of_the_code():
    found = re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE, re.M)
    expected = [
        (name, ", ".join([*inspect.signature(method).parameters][1:]))
        for name, method in vars(Hooks).items()
        if inspect.isfunction(method) and name[0] != "_"
    ]
    assert found == expected


def test_the_loop_calls_each_hook_with_as_many_arguments():
    text = inspect.getsource(inspect.getmodule(Federation))
    calls = dict(re.findall(r'_call_hooks\("(\w+)"((?:, \w+)*)\)', text))
    assert {"on_run_start", "on_round_start", "on_round_trained", "on_round_end"} <= calls.keys()
    for name, args in calls.items():
        assert name in HOOKS
        if name != "on_turn":
            passed = ["federation", *re.findall(r"\w+", args)]
            assert [*inspect.signature(getattr(Hooks, name)).parameters][1:] == passed


def test_the_object_that_hooks_get_is_described_whole():
    methods = {name for name in vars(FederatedRun) if name[0] != "_"}
    public = {*FederatedRun.__annotations__, *methods}
    assert {*re.findall(r"^\| `federation\.(\w+)", PAGE, re.M)} == public
    fields = {*Federation.__dataclass_fields__, *vars(Federation)}
    assert public <= fields


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
