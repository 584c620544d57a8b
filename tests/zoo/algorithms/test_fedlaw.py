"""FedLAW against its equations, in plain torch and double precision."""

import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, run, server_vector
from references import initial
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES, LR, ROUNDS, EPOCHS = (7, 4, 10, 6), 0.2, 3, 2
SERVER = {"server_steps": 7, "server_lr": 0.05, "server_batch_size": 5}


def batches(data, size, round_idx):
    """Endless batches (inputs, labels) of the server."""
    client = data.client(data.server, batching=Batching(size), round_idx=round_idx)
    while True:
        for part in torch.from_numpy(client.next_order()).split(size):
            yield data.examples.inputs[part].double(), data.examples.targets[part]


def mixed(models, x, y):
    return y.exp() * (F.softmax(x, dim=0)[:, None] * models).sum(0)


def li(reference, w, cohorts):
    """Equation 4 of Li et al. 2023: parameters [P] of every round."""
    for round_idx, cohort in enumerate(cohorts, start=1):
        if cohort:
            models = [torch.from_numpy(reference.sgd(k, round_idx, w)) for k in cohort]
            sizes = torch.tensor([float(reference.size(k)) for k in cohort]).double()
            x, y = sizes.log().requires_grad_(), torch.zeros((), dtype=torch.float64)
            adam = torch.optim.Adam(
                [x, y.requires_grad_()], lr=SERVER["server_lr"], betas=(0.5, 0.999)
            )
            source = batches(reference.data, SERVER["server_batch_size"], round_idx)
            for _ in range(SERVER["server_steps"]):
                inputs, labels = next(source)
                v = mixed(torch.stack(models), x, y)
                loss = F.cross_entropy(inputs @ v[:-3].view(3, -1).T + v[-3:], labels)
                adam.zero_grad()
                loss.backward()
                adam.step()
            w = mixed(torch.stack(models), x, y).detach().numpy()
        yield w


@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 3)])
@pytest.mark.parametrize("sampling", [{"fraction": 0.75}, {"dropout": 0.4}], ids=["some", "drop"])
def test_rounds_follow_the_paper(make_data, make_federation, sampling, engine, stack):
    federation = federation_of(
        *(make_data, make_federation, "fedlaw", initial(5, 3)),
        sizes=SIZES,
        server_examples=12,
        rounds=ROUNDS,
        lr=LR,
        local_epochs=EPOCHS,
        batching=Batching(4),
        sampling=sampling,
        algorithm=SERVER,
    )
    assert_rounds_follow(federation, server_vector, li, engine=engine, stack=stack, tol=1e-8)


def test_one_client_learns_its_scale_only(make_data, make_federation):
    def solve(name, **options):
        return run(
            federation_of(
                *(make_data, make_federation, name, initial(5, 3)),
                sizes=(6,),
                server_examples=8,
                rounds=1,
                local_epochs=2,
                **options,
            )
        )

    found = server_vector(solve("fedlaw", algorithm=SERVER))
    plain = server_vector(solve("fedavg"))
    ratio = found / plain
    assert ratio == pytest.approx(ratio[0] + 0 * ratio)
    assert abs(ratio[0] - 1) > 0.01
