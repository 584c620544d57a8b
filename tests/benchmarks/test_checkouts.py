import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.checkouts import HERE, commit, opened
from benchmarks.contenders import Setting, measure, parse
from benchmarks.workloads import find

# A command of another layout: it writes tables, and what it saw of `benchmarks`.
OTHER = """
import json, pathlib, sys
import benchmarks, flfast
words = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
conf = pathlib.Path(sys.argv[sys.argv.index("--config-dir") + 1])
package = pathlib.Path(benchmarks.__file__).parent
seen = {
    "flfast": flfast.__file__,
    "conf": sorted(str(path.relative_to(conf)) for path in conf.rglob("*.yaml")),
    "modules": {path.stem: path.read_text() for path in package.glob("*.py")},
}
(pathlib.Path(__file__).parents[1] / "seen.json").write_text(json.dumps(seen))
folder = pathlib.Path(words["hydra.run.dir"])
folder.mkdir()
rounds = int(words["rounds"])
(folder / "metrics.csv").write_text(
    "time/train_s,time/eval_s,train/samples_per_s,global/loss\\n"
    + ",1,,2.3\\n" + "2,1,50,2.2\\n" * rounds
)
(folder / "train.log").write_text("[now][flfast][INFO] - all\\n[now][flfast][WARNING] - well\\n")
(folder / "clients.csv").write_text("num_steps\\n" + "10\\n" * rounds)
"""


@pytest.fixture
def other(tmp_path):
    """A checkout that has `uneven` of its own, and no other of the benchmarks' options."""
    root = tmp_path / "other"
    (root / "flfast").mkdir(parents=True)
    (root / "flfast" / "__init__.py").touch()
    (root / "flfast" / "train.py").write_text(OTHER)
    (root / "benchmarks" / "conf" / "data").mkdir(parents=True)
    (root / "benchmarks" / "conf" / "data" / "uneven.yaml").write_text(
        "_target_: benchmarks.sizes.uneven\n"
    )
    (root / "benchmarks" / "sizes.py").write_text("# its own")
    (root / "benchmarks" / "workloads.py").write_text("raise AssertionError")
    return root


def test_another_checkout_runs_its_own_flfast_and_options(other):
    workload = find("W2", pfllib=Path("nowhere"), quick=True)
    with opened(None, [other, other]) as (first, second):
        assert [first.name, second.name] == ["first", "second"]
        contender = parse("eager").of(second)
        assert contender.name == "eager@second"
        run = measure(contender, workload, Setting("cpu", rounds=2))
    assert (run["steps"], run["samples"], run["loss"]) == (10, 100, 2.2)
    assert len(run["rounds"]) == 2
    assert run["warnings"] == ["well"]
    seen = json.loads((other / "seen.json").read_text())
    assert seen["flfast"] == str(other / "flfast" / "__init__.py")
    assert {"data/uneven.yaml", "data/images.yaml"} <= set(seen["conf"])
    assert seen["modules"]["sizes"] == "# its own"
    # What it lacks is this checkout's; the rest of the two packages is not there.
    assert "def images" in seen["modules"]["images"]
    assert not {"uneven", "workloads", "speed"} & set(seen["modules"])


def test_without_another_there_is_this_one(root):
    with opened(None, ()) as checkouts:
        assert checkouts == (HERE,)
    assert HERE.root == root


def test_what_is_no_checkout_is_refused(tmp_path):
    with (
        pytest.raises(ValueError, match="no checkout, it has no flfast"),
        opened(None, [tmp_path] * 2),
    ):
        pass
    with (
        pytest.raises(ValueError, match="--against nothing: no such commit"),
        opened("nothing", ()),
    ):
        pass


def test_a_commit_is_checked_out_while_it_is_needed(root):
    if not commit(root):
        pytest.skip("not a git checkout")
    with opened("HEAD", ()) as (before, now):
        assert now is HERE
        assert before.root != root
        assert (before.root / "flfast" / "train.py").is_file()
        assert before.name == commit(before.root)
    assert not before.root.exists()
    listed = subprocess.run(["git", "worktree", "list"], cwd=root, capture_output=True, check=True)
    assert str(before.root) not in listed.stdout.decode()
