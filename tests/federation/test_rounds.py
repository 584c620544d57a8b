import pytest
import torch

from flfast.federation.learning_rate import learning_rates
from flfast.federation.schedules.adaptive import adaptive
from flfast.state.plan import Batching, RoundPlan


def rates(scheduler=None, *, lr=1.0, rounds=4, warmup_rounds=0):
    return learning_rates(lr=lr, rounds=rounds, scheduler=scheduler, warmup_rounds=warmup_rounds)


def test_rates_by_round():
    lr_scheduler = torch.optim.lr_scheduler
    assert rates() == [1.0] * 4
    assert rates(lambda o: lr_scheduler.ExponentialLR(o, 0.5)) == [1.0, 0.5, 0.25, 0.125]
    assert rates(warmup_rounds=3) == [0.25, 0.5, 0.75, 1.0]
    both = rates(lambda o: lr_scheduler.StepLR(o, 2, 0.1), warmup_rounds=1)
    assert both == pytest.approx([0.5, 1.0, 0.1, 0.1])


def test_a_schedule_that_needs_a_metric_is_refused():
    with pytest.raises(ValueError, match="ReduceLROnPlateau needs a metric"):
        rates(torch.optim.lr_scheduler.ReduceLROnPlateau)


def adapted(values, metric="val/loss", **options):
    base = RoundPlan(1, 0, 0.1, Batching(10), 1, None, "single", "clients", "cpu", "32-true")
    rows = [{metric: value} for value in values]
    settings = {"action": "double_batch", "max_batch_size": 35, "min_lr": 0.03, **options}
    plans = adaptive(lambda r, h: base, metric=metric, patience=2, **settings)
    return [plans(r, rows[:r]) for r in range(1, len(rows) + 1)]


def test_a_stalled_metric_doubles_the_batch_up_to_its_bound():
    found = adapted([3.0, 2.0, 2.1, 2.2, 2.3, 2.4, 1.0, 1.1])
    assert [p.batching.batch_size for p in found] == [10, 10, 10, 20, 20, 35, 35, 35]


@pytest.mark.parametrize(
    ("metric", "better"), [("val/mae", -1), ("personal_val/perplexity", -1), ("val/dice", 1)]
)
def test_a_metric_that_improves_does_not_stall(metric, better):
    assert {p.batching.batch_size for p in adapted([better * v for v in range(6)], metric)} == {10}


def test_or_halves_the_learning_rate_down_to_its_bound():
    found = adapted([3.0] * 6, action="halve_lr")
    assert [p.lr for p in found] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.03, 0.03])


@pytest.mark.parametrize("bias", [0.0, 1e6])
def test_the_end_of_a_run_names_the_sets_with_one_predicted_class(
    bias, make_data, make_federation, caplog
):
    data = make_data((20, 20), num_test=20)
    model = torch.nn.Linear(data.examples.input_shape[0], data.num_classes)
    with torch.no_grad():
        model.bias[0] = bias
    make_federation(data, model, rounds=1, lr=1e-9).run()
    lines = [line for line in caplog.messages if line.startswith("one class is predicted")]
    assert len(lines) == (bias > 0)
    assert not lines or "every example of global, " in lines[0]
