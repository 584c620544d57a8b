"""Modules of a plan's precision."""

import torch
from torch import nn


class Rotated(nn.Module):
    """A linear layer whose inputs are rotated by a complex constant."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.register_buffer("rotation", torch.full((4,), 1j), persistent=False)

    def forward(self, inputs):
        return self.out((inputs.flatten(1) * self.rotation).imag.to(inputs.dtype))


def test_precision_keeps_the_imaginary_part_of_a_constant(make_data, make_federation):
    federation = make_federation(make_data([6]), Rotated())
    site, plan = federation.engine.site, federation.plans(1, [])
    module = site.trainers.module(plan._replace(precision="64-true"))
    assert module.model.out.weight.dtype == torch.float64
    assert module.model.rotation.imag.tolist() == [1.0] * 4
