"""Forms of stacks give the same weights, and a trial of them changes nothing of a run."""

from functools import partial

import pytest
import torch
from engine_runs import assert_engines_agree, engine_of, net
from torch import nn

from flfast.algorithms.contract.downloads import first_downloads
from flfast.engines.fused.run.stack_trial import StackForm
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.state.tree import leaves
from flfast.state.weights import read_weights


class Unfolded(FusedTraining):
    """Convolutions of stacks are batched products."""

    def programs(self, plan):
        programs = super().programs(plan)
        programs.form = StackForm(unfold=True)
        return programs


def cnn():
    first = partial(nn.Conv2d, 2, 4, 3, stride=2, padding=1)
    second = partial(nn.Conv2d, 4, 4, 2, bias=False)
    pool = partial(nn.AdaptiveAvgPool2d, 1)
    return net(first, nn.ReLU, second, nn.Tanh, pool, nn.Flatten, lambda: nn.Linear(4, 3))


@pytest.fixture
def make(make_data, make_federation):
    def make():
        return make_federation(
            make_data([9, 14, 3], features=(2, 8, 8)),
            cnn().to(memory_format=torch.channels_last),
            batching=Batching(4),
            trainer={"precision": "64-true"},
            optimizer=partial(torch.optim.SGD, momentum=0.9),
            rounds=2,
        )

    return make


def test_clients_whose_convolutions_are_unfolded_train_as_eagerly(make):
    assert_engines_agree(make, engine=Unfolded, stack=3)


def trained(make, *, tried):
    """Uploads of a round, and the form that a trial chose before."""
    federation = make()
    federation.engine = engine_of(federation, FusedTraining, stack=3)
    plan, training, form = federation.plans(1, []), federation.engine.training, None
    if tried:
        site = federation.engine.site
        download = first_downloads(site.algorithm, read_weights(site.model), 0)
        start = partial(site.start, 0, download, plan)
        with training.outside_precision():
            form = training.programs(plan).try_forms(3, start, plan)
    server = federation.algorithm.server_state(federation.initial)
    done = federation.engine.train(server, [0, 1, 2], plan, on_client=lambda report: None)
    return [*leaves(done.uploads.mean)], form


def test_a_trial_of_forms_changes_no_number_of_the_run(make):
    expected, _ = trained(make, tried=False)
    found, form = trained(make, tried=True)
    assert form.width == 0  # a number that the user sets is kept
    assert all(map(torch.equal, found, expected))
