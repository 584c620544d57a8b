"""Names of members become options of `conf/model/`, before torch is imported."""

import pytest

from flfast.config.check import check
from flfast.config.composition import compose, without_hydra
from flfast.config.errors import ConfigError
from flfast.config.job import HydraJob


def filled(*words):
    composed = compose(["model=family", "algorithm=local", *words])
    composed.hydra.runtime.output_dir = "unused"
    given = without_hydra(composed.copy())
    config = HydraJob.of(composed, given).fill(given)
    check(config)
    return config.model


def test_members_are_options_with_overrides():
    found = filled(
        "model.of=[lenet,{cnn:{hidden:64}},cnn,{_target_: flfast.models.mlp.mlp, hidden: [3], "
        "dropout: 0, _partial_: true}]",
        "model.common=logistic",
    )
    assert [*found.of] == ["lenet", "cnn", "cnn-2", "mlp"]
    assert (found.of.cnn.hidden, found.of["cnn-2"].hidden) == (64, 512)
    assert found.common._target_ == "flfast.models.logistic.logistic"


def test_members_of_one_name_are_numbered_and_a_file_is_read_once(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("a-b\na-b-2\n")
    twice = "{timm:{name:a-b}}"
    found = filled(f"model.of=[{twice},{twice},mlp,mlp,mlp]", f"model.assign={path}")
    assert [*found.of] == ["a-b", "a-b-2", "mlp", "mlp-2", "mlp-3"]
    assert found.assign == ["a-b", "a-b-2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model.of=[leenet]", r"model.of: leenet is no option of model=; allowed: options such"),
        ("model.of=[{cnn:{depth:64}}]", r"model.of: cnn has no depth; allowed: .*hidden"),
        ("model.of=[{cnn:{hidden:0}}]", r"model.of.cnn.hidden=0"),
        ("model.of=[{mlp:{hidden:{a:1}}}]", r"model.of: mlp: "),
        ("model.of=[3]", r"model.of: 3; allowed: options such as lenet"),
        ("model.common=x", r"model.common: x is no option of model="),
        ("model.feature_dim=0", r"model.feature_dim=0"),
        ("model.of=[{_target_: flfast.models.no}]", r"model.of.no._target_=flfast.models.no"),
    ],
)
def test_what_is_no_member_is_one_line(words, message):
    with pytest.raises(ConfigError, match=message) as refused:
        filled(words)
    assert "\n" not in str(refused.value)
