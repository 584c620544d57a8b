"""FedNTD against its equations, its limit, and the logits that it asks the task for."""

import numpy as np
import pytest
import torch
from algorithms_by_name import algorithm_of
from engine_runs import mlp, with_batchnorm
from torch import nn

from flfast.datamodules.batches import Batch
from flfast.lit.task import LocalTask
from flfast.zoo.algorithms.fedntd import fedntd


def softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


def distillation_gradient(w, fixed, step, *, beta, tau):
    """Gradient of the not-true distillation of softmax regression, example by example.

    KL(p, q) with q = softmax(z / tau) has the gradient (q - p) / tau in z.
    """
    inputs, targets = step
    weight, bias = w[:-3].reshape(3, -1), w[-3:]
    weight_0, bias_0 = fixed[:-3].reshape(3, -1), fixed[-3:]
    of_weight, of_bias = np.zeros_like(weight), np.zeros_like(bias)
    for x, y in zip(inputs, targets, strict=True):
        others = [c for c in range(3) if c != y]
        p = softmax((weight_0 @ x + bias_0)[others] / tau)
        q = softmax((weight @ x + bias)[others] / tau)
        for c, value in zip(others, beta * tau**2 * (q - p) / tau / len(targets), strict=True):
            of_weight[c] += value * x
            of_bias[c] += value
    return np.concatenate([of_weight.ravel(), of_bias])


def lee(beta, tau):
    """FedNTD of Lee et al. 2022 on the clients of `Reference`."""

    def equations(reference, w, cohorts):
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                models = []
                for k in cohort:
                    w_k = w.copy()
                    for step in reference.steps(k, round_idx):
                        g = reference.gradient(w_k, step)
                        g = g + distillation_gradient(w_k, w, step, beta=beta, tau=tau)
                        w_k = w_k - reference.lr * g
                    models.append(w_k)
                w = np.average(models, axis=0, weights=[reference.size(k) for k in cohort])
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "beta", "tau"), [(-1, 1.0, 1.0), (2, 2.0, 3.0)])
def test_trajectories_follow_the_paper(assert_follows, batch_size, beta, tau, sampling):
    assert_follows(
        fedntd(beta=beta, tau=tau, weighting="samples"),
        lee(beta, tau),
        batch_size=batch_size,
        sampling=sampling,
        lr=0.3,
    )


def test_with_two_classes_it_is_fedavg(make_data, make_federation):
    def solve(algorithm):
        federation = make_federation(
            make_data((5, 3), num_classes=2), algorithm=algorithm, rounds=2, local_epochs=2
        )
        federation.run()
        return federation.weights()

    found = solve(fedntd(beta=9.0, tau=1.0, weighting="samples"))
    torch.testing.assert_close(found, solve(algorithm_of("fedavg", mlp())))


def test_logits_are_the_outputs_of_the_model():
    model = with_batchnorm()
    batch = Batch(torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))
    task, params = LocalTask(model), dict(model.named_parameters())
    before = model[2].running_mean.clone()
    fixed = task.fixed_logits({**params, **dict(model.named_buffers())}, batch)
    torch.testing.assert_close(fixed, model.eval()(batch.inputs).detach())
    assert torch.equal(model[2].running_mean, before)
    assert not fixed.requires_grad
    model.train()
    logits = task.logits(params, batch)
    assert logits.requires_grad
    torch.testing.assert_close(logits, model(batch.inputs))
    loss = nn.functional.cross_entropy(logits, batch.targets)
    torch.testing.assert_close(task(params, batch), loss)
    assert all(layer.training for layer in model.modules())
