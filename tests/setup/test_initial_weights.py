"""`init_from` starts a family whose members are parts of one model from that model's file."""

import pytest
import sliced_runs
from sampling import others_slow
from sliced_runs import EAGER, FAMILY, MLPS, started

import flfast
from flfast.output.results.table import read_history

MEMBER = "{{multi_exit_cnn:{{channels:[4,6],depth:{}}}}}"
EXITS = f"model.of=[{MEMBER.format(2)},{MEMBER.format(1)}]"
EVERY_CLASS = "algorithm.masked=false"  # else a client's own model depends on its last round
FAMILIES = {
    "heterofl": ((MLPS, EVERY_CLASS), (5,)),
    "fedrolex": ((MLPS, EVERY_CLASS), (5,)),
    "fjord": ((MLPS,), (5,)),
    "depthfl": ((EXITS, "bn=frozen"), (1, 4, 4)),
}
SETS = ("local/", "personal/", "global/")


def run(folder, algorithm, *words):
    options, shape = FAMILIES[algorithm]
    words = (*FAMILY, *options, f"algorithm={algorithm}", *EAGER, *words)
    started(folder, *words, "split.test=0.4", "eval_every=6", shape=shape)
    return read_history(folder / "metrics.csv")


@pytest.mark.parametrize("algorithm", others_slow([*FAMILIES], ["heterofl"]))
def test_clients_go_on_from_their_parts_of_the_servers_model(tmp_path, algorithm):
    # After six rounds, fedrolex' windows of six units are where they began.
    *_, last = run(tmp_path / "before", algorithm, "rounds=6")
    first = run(tmp_path / "after", algorithm, "rounds=1", f"init_from={tmp_path}/before/model.pt")
    measured = {name: value for name, value in last.items() if name.startswith(SETS)}
    assert len(measured) > 10
    assert {name: first[0][name] for name in measured} == measured


def test_members_with_models_of_their_own_refuse_a_file_of_another_one(tmp_path):
    run(tmp_path / "before", "heterofl", "rounds=1")
    words = (*FAMILY, MLPS, "algorithm=fd", f"init_from={tmp_path}/before/model.pt")
    with pytest.raises(flfast.ConfigError, match=r"does not fit the model: .*\[6, 5\] instead of"):
        sliced_runs.started(tmp_path / "after", *words)
