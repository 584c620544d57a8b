"""Programs of a local step."""

import pytest
import torch
from torch import nn

from flfast.algorithms.contract.client import LocalStage
from flfast.algorithms.fedavg import fedavg
from flfast.engines.fused.graph import programs
from flfast.engines.fused.graph.local_step import LocalStep
from flfast.engines.fused.graph.programs import StepPrograms
from flfast.engines.fused.graph.trace import rewritten
from flfast.engines.fused.graph.update_rules import local_optimizer
from flfast.lit.local_module import LocalModule


@pytest.fixture
def traces(monkeypatch):
    """Operators of every trace that is made."""
    made, trace = [], programs.operators

    def traced(fn, trees):
        made.append(trace(fn, trees))
        return made[-1]

    monkeypatch.setattr(programs, "operators", traced)
    return made


def test_a_step_is_traced_once_for_inputs_of_one_layout(traces):
    """Whatever a caller does with a trace, the next one gets the step as it was traced."""
    model = nn.Linear(5, 3)
    params = {name: leaf.detach() for name, leaf in model.named_parameters()}
    sgd = local_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    stage, joint = LocalStage(list(params)), {"params": {}, "buffers": {}}
    module = LocalModule(model, fedavg(weighting="samples"), torch.optim.SGD)
    step = LocalStep(module, sgd, stage=stage, joint=joint)
    state = {"params": params, "buffers": {}, "optimizer": {}, "loss": torch.zeros(())}
    context = {"server": {}, "client": {}, "start": {}}
    settings = {"lr": torch.tensor(0.1).double()}
    own = StepPrograms(step)

    def operators(num, dtype=torch.float32):
        batch = {"weights": torch.ones(num), "num": torch.tensor(2.0), "share": torch.tensor(1.0)}
        rows = {"inputs": torch.zeros(num, 5, dtype=dtype), "targets": torch.zeros(num).long()}
        return own.operators("whole", [state, context, settings, batch], rows)

    first = operators(2)
    code, rewrite = first.code, rewritten(first).code
    assert code != rewrite
    again = operators(2)
    assert again.code == code
    assert rewritten(again).code == rewrite
    assert len(traces) == 1
    operators(4)
    assert len(traces) == 2
    with torch.autocast("cpu", torch.bfloat16):
        assert operators(4).code != code
    assert len(traces) == 3
