"""Which way a search goes, and which metrics there are."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from flfast.config.errors import ConfigError
from flfast.setup.optimized_metric import check_direction, check_metrics
from flfast.tasks.by_name import TASKS


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


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_every_metric_of_a_task_can_decide_and_no_other(task):
    module = SimpleNamespace(task_type=task)
    engine = SimpleNamespace(evaluation_sets={"val"}, site=SimpleNamespace(module=module))

    def check(metric):
        options = {"stop": {}, "schedule": {"adapt": None}, "checkpoint": {"keep_best": None}}
        options |= {"optimized_metric": metric, "sampler": {}, "finetune_epochs": 0}
        check_metrics(OmegaConf.create(options), engine)

    for name in task.metrics:
        check(f"val/{name}")
        check(f"val/{name}_worst10")
        with pytest.raises(ValueError, match=f"task={task.name} measures loss, "):
            check(f"val/{name}s")
    with pytest.raises(ValueError, match=f"task={task.name} measures loss, "):
        check("val/nothing")
