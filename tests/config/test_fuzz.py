"""Random input at the command line: one clear error before training, or a correct run."""

import io
import logging
import math
import sys
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from campaign import examples
from composing import composed
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tables import rows

from flfast import train
from flfast.config.check import check
from flfast.config.command_line import check_overrides
from flfast.config.errors import ConfigError
from flfast.state.plain_yaml import PARSER

ROUNDS = 2
# A federation of two clients that takes milliseconds.
TINY = (
    "data=synthetic data.num_examples=40 data.num_test=10 data.num_classes=2 data.num_clients=2 "
    "data.shape=[4] model=logistic "
    f"rounds={ROUNDS} local_epochs=1 strategy=single trainer.devices=1 callbacks=none"
).split()
SHAPES = {"cnn": "[1,16,16]", "lenet": "[1,28,28]", "pfl_cnn": "[1,8,8]", "resnet18": "[3,8,8]"}
# Not installed with flfast, or nothing without an option that must be given.
LEFT_OUT = {"wandb", "mlflow", "custom", "experiment", "hparams_search", "hydra"}
# A large value of these is a long run, which is what was asked for.
LONG = {"rounds", "local_epochs", "local_steps", "finetune_epochs", "head_epochs", "inner_steps"}
# Of stop=target, sampler=from_file, devices=from_trace, partition=from_file and model=timm.
WITHOUT_DEFAULT = (
    *("stop.value", "sampler.path", "devices.path", "partition.path"),
    "model.name",
)
HUGE = [10**9, 10**22, 1e17, 1e30]


def leaves(node, prefix):
    for name, child in node.items():
        if name not in {"_partial_", "defaults"}:
            yield f"{prefix}{name}"
            if isinstance(child, dict):
                yield from leaves(child, f"{prefix}{name}.")


def keys():
    """(option that has it, key) of everything that conf/ holds, whole groups included."""
    conf = Path(train.CONF)
    for path in sorted([conf / "config.yaml", *conf.glob("*/*.yaml")]):
        group = path.parent.name if path.parent != conf else ""
        if LEFT_OUT.isdisjoint({group, path.stem}):
            content = yaml.load(path.read_text("utf-8"), PARSER)
            option = f"{group}={path.stem}" if group else ""
            for name in leaves(content, f"{group}." if group else ""):
                yield option, name


KEYS = list(keys())
GROUPS = sorted({option.partition("=")[0] for option, _ in KEYS if option})
PLAIN = [None, -5, -1, 0, 1, 2.5, 0.5, 1e-300, -1e-9, math.nan, math.inf, -math.inf, True, False]
WORDS = ["", "text", "ünï☃", "1", "null ", "a.b.C", "os.system", "../..", "cpu", "auto"]
NESTED = [[], {}, [None], [[1]], [1, 2], [math.nan], {"a": 1}, {"_target_": "a.b"}, [{"a": []}]]
LINKS = ["${nothing}", "${batch_size}", "${oc.env:FLFAST_NOT_SET}", "${optimizer.lr}", "${data}"]
VALUES = st.one_of(
    st.sampled_from([*PLAIN, *HUGE]),
    st.sampled_from([*WORDS, *NESTED, *LINKS]),
    st.integers(-(2**70), 1) | st.floats(max_value=1.0) | st.text("ab$[]{}'\"\\,:= ü", max_size=6),
)


def meant(key, value):
    """Whether a value is one that a fuzz test can afford."""
    large = isinstance(value, int | float) and value > 2
    return not (large and key.rpartition(".")[2] in LONG)


WHOLE_GROUPS = st.tuples(st.sampled_from([("", group) for group in GROUPS]), VALUES)
OVERRIDES = st.tuples(st.sampled_from(KEYS), VALUES).filter(lambda o: meant(o[0][1], o[1]))


@pytest.mark.slow
@given(OVERRIDES)
@examples(40)
def test_any_value_of_any_key_is_good_or_an_error_that_names_it(override):
    (option, key), value = override
    assume(not key.startswith("logger."))  # which has what only a job knows
    config = composed(option if not option.startswith("logger") else "")
    try:
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    except OmegaConfBaseException:
        return  # no interpolation; Hydra's parser does not let it through
    try:
        check(config)
    except ConfigError as error:
        assume(not any(f"{name} is missing" in str(error) for name in WITHOUT_DEFAULT))
        assert key.rpartition(".")[2] in str(error) or str(value) in str(error)


def typed(value):
    """A value in Hydra's grammar; strings as they are, since users quote as little."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{typed(child)}" for name, child in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(typed, value)) + "]"
    return {None: "null", True: "true", False: "false"}.get(value) or str(value)


def run(overrides, folder):
    """(exit code, what the user read) of the command, in this process."""
    said = io.StringIO()
    # A file's handler that Hydra closes would open the file again, and nobody would close it.
    handlers = [h for h in logging.getLogger().handlers if not isinstance(h, logging.FileHandler)]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of huge numbers
        patch.setattr(sys, "argv", ["flfast", *overrides, f"hydra.run.dir={folder}"])
        try:
            with redirect_stdout(said), redirect_stderr(said):
                train.main()
        except SystemExit as stop:
            return stop.code, said.getvalue()
        finally:
            for handler in {*logging.getLogger().handlers} - {*handlers}:
                handler.close()
            logging.getLogger().handlers = handlers
    return 0, said.getvalue()


def tiny(options):
    """TINY without what the options replace."""
    groups = {option.partition("=")[0] for option in options}
    kept = [word for word in TINY if word.partition("=")[0].partition(".")[0] not in groups]
    if "partition" not in groups:
        kept.append("partition=iid")  # some data choose a partition with other options
    if "partition=natural" not in options:
        kept += ["partition.num_clients=2", "partition.min_samples=1"]
    kept += ["stop.value=0.5"] * ("stop=target" in options)
    shapes = [SHAPES[name] for name in SHAPES if f"model={name}" in options]
    return [*kept, *options, *(f"data.shape={shape}" for shape in shapes if "data" not in groups)]


def whole_table(folder):
    table = rows(folder)
    return table if len(table) == ROUNDS + 1 else None


# What Hydra's grammar, its resolvers and a shell's quotes make of words.
RAW = [
    *("${now:%Y}", "${hydra:job.num}", "${oc.env:HOME}", "${oc.env:}", "${oc.decode:'[1]'}"),
    *("${oc.create:{a:1}}", "${oc.select:nope,4}", "${.seed}", "${${seed}}", "\\${seed}", "${"),
    *("choice(1,2)", "range(1,1)", "range(0,1,0)", "glob(*)", "glob('f*')", "sort(3,1)", "1,2"),
    *("shuffle(1,2)", "tag(a,choice(1))", "interval(0,1)", "int(3)", "float(x)", "extend_list(1)"),
    *("'a b'", '"', "'${seed}'", "{a:1,a:2}", "{1:2}", "{true:1}", "{null:1}", "[1,2", "{a}"),
    *("{_target_:os.system,command:ls}", "[{_target_:a.b}]", "?" * 3, "[?" + "??]", "a=b", "@"),
    *("\x00", "\u202e", "\n", "a\nb", "\t", "9" * 400, "x" * 5000, "[" * 200, "1e400", "0x10"),
    *("[{from:1,overrides:[rounds=3]}]", "[{from:2,overrides:['${nope}']}]", "!!python/name:os"),
]
PLACES = st.sampled_from(
    [
        *(["{}={}"] * 4 + ["+{}={}", "++{}={}", "~{}", "~{}={}", "{}.x={}", "+{}.x.y={}"]),
        *("{}@x={}", "+{}@model={}", "{}:={}", "{}", "={}", "{}[0]={}", "{}..a={}", ".{}={}"),
        *("{}/x={}", "{} ={}", "+experiment@{}={}", "hydra.{}={}", "-{}={}", "--{}={}"),
    ]
)
TYPED = st.sampled_from(RAW) | VALUES.map(lambda value: typed(value))
LINES = st.lists(st.tuples(OVERRIDES | WHOLE_GROUPS, PLACES, TYPED), min_size=1, max_size=3)


def at_the_door(words):
    """(exit code, what the user read, phases that would run) of the command, up to torch."""
    seen = []
    door = ModuleType("flfast.setup.launch")
    door.run = lambda phases, job: seen.append(phases)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as place:
        patch.setitem(sys.modules, "flfast.setup.launch", door)
        patch.chdir(place)
        code, said = run(words, Path(place) / "run")
    return code, said, seen


@given(LINES, st.booleans())
@examples(25)
def test_any_words_in_any_order_are_a_clear_error_or_reach_the_run(drawn, is_sweep):
    options = [option for ((option, _), _), _, _ in drawn if option]
    words = [place.format(key, text) for ((_, key), _), place, text in drawn]
    code, said, seen = at_the_door([*options, *words, *(["-m"] if is_sweep else [])])
    assert "Traceback" not in said
    assert (code == 0) == bool(seen) or any(word.startswith("-") for word in words)
    if code:
        assert code == 2
        assert "flfast stops here" in said or "error: " in said  # of argparse


@pytest.mark.parametrize(
    ("words", "num_runs"),
    [
        (("rounds=1,2", "seed=range(1,3)"), 4),
        (("selection=glob(*,exclude=oort)",), 2),
        (("optimizer.lr=choice(0.1,0.2)",), 2),
    ],
)
def test_sweeps_reach_the_run_once_each(words, num_runs):
    code, said, seen = at_the_door(["-m", *words])
    assert code == 0, said
    assert len(seen) == num_runs
    assert len({str(phases) for phases in seen}) == num_runs


@pytest.mark.parametrize("word", ["algorithm=glob(nope*)", "rounds=range(1,1)", "rounds=glob(*)"])
def test_a_sweep_over_nothing_is_an_error(word):
    code, said, seen = at_the_door(["-m", word])
    assert (code, seen) == (2, [])
    assert f"{word}: the sweep has no value, so nothing would run" in said


def test_sweeps_are_not_walked_through():
    check_overrides(["rounds=range(1,1000000000000)"])


def test_options_elsewhere_may_match(tmp_path):
    check_overrides(["-m", "--config-dir", str(tmp_path), "algorithm=glob(my_*)"])
    check_overrides(["-m", f"hydra.searchpath=[{tmp_path}]", "algorithm=glob(my_*)"])


SPELLINGS = st.sampled_from(["{}={}", "{}={}", "{}={}", "+{}={}", "{}x={}", "~{}", "++{}={}"])


@given(st.lists(st.tuples(OVERRIDES | WHOLE_GROUPS, SPELLINGS), min_size=1, max_size=3))
@examples(15)
def test_any_command_line_is_a_clear_error_or_a_whole_run(drawn):
    options = {option.partition("=")[0]: option for ((option, _), _), _ in drawn if option}
    words = [spelling.format(key, typed(value)) for ((_, key), value), spelling in drawn]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        code, said = run([*tiny(options.values()), *words], folder)
        table = whole_table(folder)
    assert "Traceback" not in said
    if code == 0:
        logged = "logger" not in options and not any("logger" in word for word in words)
        if logged and not any("fast_dev_run" in word or "rounds" in word for word in words):
            losses = [row["global/loss"] or row["personal/loss"] for row in table]
            assert all(math.isfinite(float(loss)) for loss in losses)
        return
    assert code == 2
    assert table is None
    message = said.partition("flfast stops here:")[2]
    named = {
        "data.root",
        *options,
        *(part for word in words for part in word.strip("+~").split("=", 1)),
    }
    assert any(name.rpartition(".")[2] in message for name in named), message
