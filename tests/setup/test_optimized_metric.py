"""Which way a search goes, and which metrics there are."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from flfast.config.errors import ConfigError
from flfast.setup.optimized_metric import check_direction, check_metrics, optimized_metric
from flfast.tasks.by_name import TASKS
from flfast.tasks.module import MODULE


def hydra(direction, mode="MULTIRUN"):
    return OmegaConf.create({"hydra": {"mode": mode, "sweeper": {"direction": direction}}})


@pytest.mark.parametrize(
    ("metric", "right", "wrong"),
    [("val/loss", "minimize", "maximize"), ("val/accuracy", "maximize", "minimize")],
)
def test_a_search_for_the_worst_job_is_refused(metric, right, wrong):
    config = OmegaConf.create({"optimized_metric": metric})
    check_direction(config, hydra(right))
    check_direction(config, hydra(wrong, mode="RUN"))
    check_direction(config, hydra(["minimize", "maximize"]))
    check_direction(config, OmegaConf.create({"hydra": {"mode": "MULTIRUN", "sweeper": {}}}))
    said = f"direction={wrong} with optimized_metric={metric}: allowed: .*direction={right}"
    with pytest.raises(ConfigError, match=said):
        check_direction(config, hydra(wrong))


def checking(task, central_val=()):
    """Check a column of a run that learns this task."""
    module = SimpleNamespace(task_type=task)
    site = SimpleNamespace(module=module, data=SimpleNamespace(central_val=central_val))
    engine = SimpleNamespace(evaluation_sets={"val", "local", "global"}, site=site)

    def check(metric):
        options = {"stop": {}, "schedule": {"adapt": None}, "checkpoint": {"keep_best": None}}
        options |= {"optimized_metric": metric, "sampler": {}, "finetune_epochs": 0}
        check_metrics(OmegaConf.create(options), engine)

    return check


@pytest.mark.parametrize("task", [task for task in TASKS.values() if task is not MODULE])
def test_every_metric_of_a_task_can_decide_and_no_other(task):
    check = checking(task)
    for name in task.metrics:
        check(f"val/{name}")
        check(f"val/{name}_worst10")
        with pytest.raises(ValueError, match=f"task={task.name} measures loss, "):
            check(f"val/{name}s")
    with pytest.raises(ValueError, match=f"task={task.name} measures loss, "):
        check("val/nothing")


LOGGED = (("loss", "kl"), ("loss", "f 1/x"), ("acc",))
"""Names that a module logs in local training, on validation and on test examples."""


def test_what_a_module_logs_somewhere_decides_there_alone(caplog):
    check = checking(replace(MODULE, logged=LOGGED))
    with caplog.at_level(logging.INFO):
        for metric in ("train/kl", "train/loss", "val/loss", "val/loss_worst10"):
            check(metric)
        assert not caplog.records, "their names say that they should fall"
        check("val/f 1/x")
        check("local/acc_std")
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        "larger is better: val/f 1/x",
        "larger is better: local/acc_std",
    ]
    for metric in ("val/acc", "local/f 1/x", "train/acc", "val/f 1"):
        with pytest.raises(ValueError, match=f"{metric}: task=module measures .*allowed: one of"):
            check(metric)
    with pytest.raises(ValueError, match="new/acc will not be measured"):
        check("new/acc")


@pytest.mark.parametrize("end", ["std", "worst10"])
def test_what_is_nobodys_has_no_spread_that_decides(end):
    check = checking(replace(MODULE, logged=LOGGED))
    central = checking(replace(MODULE, logged=LOGGED), central_val=(1,))
    check(f"val/loss_{end}")
    check(f"local/acc_{end}")
    central("val/loss")
    for refuses, metric in ((check, "global/acc"), (check, "train/kl"), (central, "val/loss")):
        with pytest.raises(ValueError, match=r"measures .*allowed: one of them"):
            refuses(f"{metric}_{end}")


def test_a_modules_validation_says_what_auto_is():
    module = SimpleNamespace(algorithm=SimpleNamespace(personal=None, evaluate_server=True))
    data = SimpleNamespace(central_val=())
    config = OmegaConf.create({"optimized_metric": "auto"})
    for logged, column in {
        LOGGED: "val/loss",
        ((), ("acc", "accuracy"), ("loss",)): "val/accuracy",
        ((), ("b", "a"), ("loss",)): "val/b",
        ((), (), ("loss",)): "val/loss",
        (("loss",), (), ()): "train/loss",
    }.items():
        module.task_type = replace(MODULE, logged=logged)
        assert optimized_metric(config, module, data) == column
