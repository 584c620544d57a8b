"""A run with objects of a program is opened again, by the lines that the error prints."""

import pandas as pd
import pytest
import torch
from composing import FILES
from sampling import others_slow
from torch import nn

import flfast
import flfast.evaluate as command
from flfast.output.results.table import read_rows

ALLOWED = r"(?s)is an object of a Python program.*these lines work:\n"


def net(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(5, num_classes))


def columns(numbers):
    inputs, targets, clients = numbers
    frame = pd.DataFrame(inputs.numpy(), columns=[f"x{i}" for i in range(5)])
    return frame.assign(label=targets.numpy(), client=clients.numpy())


FORMS = {
    "tensors and a module": lambda n: {"data": n, "model": net(3)},
    "a frame and a function": lambda n: {
        "data": columns(n)[:40],
        "test_data": columns(n)[40:],
        "target": "label",
        "client": "client",
        "model": net,
    },
    "an own model, data of flfast": lambda _: {
        "model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    },
    "own data, a model of flfast": lambda n: {"data": n},
}


@pytest.mark.parametrize("form", others_slow(FORMS, [*FORMS][1:2]))
def test_the_lines_of_the_error_open_the_run(quick, numbers, form):
    given = FORMS[form](numbers)
    run = quick(*FILES, **given)
    with pytest.raises(flfast.ConfigError, match=ALLOWED) as error:
        command.evaluate([f"run={run.folder}"])
    lines = str(error.value).partition("work:\n")[2]
    names = {name: given.get(name.lower()) for name in ("DATA", "TEST_DATA", "MODEL")}
    scope = {"flfast": flfast, **names}
    exec(lines, scope)
    found = scope["run"].evaluate("split=test")
    last = read_rows(run.folder / "metrics.csv")[-1]
    assert found == pytest.approx({name: float(last[name]) for name in found}, rel=1e-6)
    weights = scope["run"].model.state_dict()
    assert all(torch.equal(value, weights[k]) for k, value in run.model.state_dict().items())
    path = scope["run"].export("format=torch", f"output={run.folder / 'here.pt2'}")
    assert path.exists()


def test_a_module_needs_no_data_and_is_copied(quick, numbers):
    model = net(3)
    run = quick(*FILES, data=numbers, model=model)
    other = net(3)
    before = [p.clone() for p in other.parameters()]
    found = flfast.Run(run.folder, model=other).model
    trained = run.model.state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in found.state_dict().items())
    assert all(torch.equal(p, q) for p, q in zip(before, other.parameters(), strict=True))
    with pytest.raises(flfast.ConfigError, match="does not fit the model"):
        _ = flfast.Run(run.folder, model=nn.Linear(2, 2)).model


def test_other_data_are_evaluated(quick, numbers):
    run = quick(*FILES, data=numbers, model=net)
    inputs, targets, clients = numbers
    again = flfast.Run(run.folder, model=net, data=(inputs[:30], targets[:30], clients[:30]))
    again.evaluate("split=train")
    assert len(read_rows(run.folder / "evaluation" / "predictions.csv")) < 30


@pytest.mark.slow
def test_a_program_trusts_what_it_has_named(quick):
    run = quick(*FILES, "optimizer=custom", "optimizer._target_=torch.optim.RMSprop")
    assert run.model is not None
    assert run.evaluate() == run.evaluate()
    with pytest.raises(flfast.ConfigError, match=r"allow=torch\.optim\.RMSprop"):
        flfast.Run(run.folder).evaluate()
    assert flfast.Run(run.folder, allow="torch.optim.RMSprop").evaluate() == run.evaluate()
