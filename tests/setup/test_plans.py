"""What a plan says of precision, on GPUs that are not here."""

from pathlib import Path

import pytest
from torch import nn

from flfast.config.composition import compose
from flfast.config.phases import Phase
from flfast.distributed.world import ALONE
from flfast.setup import plans


@pytest.mark.parametrize(
    ("devices", "words", "arithmetic", "reason"),
    [
        ([0], ("32-true", "null"), "32-true", None),
        ([0], ("32-true", "ieee"), "32-true ieee", None),
        ([0, 1], ("bf16-mixed", "tf32"), "bf16-mixed tf32", None),
        ([0], ("64-true", "tf32"), "64-true", "with trainer.precision=64-true"),
        ([0], ("bf16-true", "ieee"), "bf16-true", "with trainer.precision=bf16-true"),
        (1, ("32-true", "ieee"), "32-true", "on a CPU"),
        (1, ("32-true", "null"), "32-true", None),
    ],
)
def test_a_plan_multiplies_as_asked_or_says_why_not(
    monkeypatch, caplog, devices, words, arithmetic, reason
):
    monkeypatch.setattr(plans, "choose_strategy", lambda config: ("ddp", devices))
    precision, value = words
    config = compose([f"trainer.precision={precision}", f"trainer.fp32_precision={value}"])
    plan = plans.build_plan(0, config, nn.Linear(2, 2))
    assert plan.arithmetic == arithmetic
    assert f", {arithmetic}, batch" in plan.describe()
    said = f"trainer.fp32_precision={value} has no effect {reason}"
    assert (said in caplog.text) == (reason is not None)
    assert ("fp32" in caplog.text) == (reason is not None)


def test_lightning_is_not_given_the_option_that_is_ours(tmp_path):
    config = compose(["trainer.accelerator=cpu", "trainer.fp32_precision=tf32"])
    plan = plans.build_plan(0, config, nn.Linear(2, 2))
    trainer = plans.build_trainer([Phase(1, config)], [], Path(tmp_path), ALONE, plan)
    assert trainer.precision == "32-true"
