"""Muon for hidden matrices and AdamW for the rest, against torch's two optimizers."""

import pytest
import sliced_runs
import torch
from sampling import others_slow
from torch.nn import functional as F

import flfast

MUON = ("model=mlp", "model.hidden=[6]", "optimizer=muon", "optimizer.lr=0.1")
ROUNDS = ("rounds=2", "local_optimizer_state=keep", "algorithm.weighting=uniform")

needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch 2.9 has it")


@needs_muon
@pytest.mark.parametrize("kept", others_slow(["[fc.weight]", "[]"], ["[fc.weight]"]))
def test_clients_follow_torchs_muon_and_adamw_and_keep_their_states(tmp_path, kept):
    words = (*MUON, *ROUNDS, f"optimizer.adamw_names={kept}")
    start = sliced_runs.initial(tmp_path / "initial", *words)
    found = sliced_runs.run(tmp_path / "run", *words)
    x, y, owner = sliced_runs.population()
    hidden = [n for n, leaf in start.items() if leaf.ndim == 2 and n not in kept]
    assert hidden == (["fc1.weight"] if kept != "[]" else ["fc1.weight", "fc.weight"])
    clients = []
    for _ in range(4):
        params = {n: leaf.clone().requires_grad_() for n, leaf in start.items()}
        muon = [params[n] for n in hidden]
        others = [p for n, p in params.items() if n not in hidden]
        both = (
            torch.optim.Muon(muon, lr=0.1, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=0.1, weight_decay=0.01),
        )
        clients.append((params, both))
    mean = start
    for _ in range(2):
        for k, (params, both) in enumerate(clients):
            with torch.no_grad():
                for name, p in params.items():
                    p.copy_(mean[name])
            for _ in range(sliced_runs.EPOCHS):
                loss = F.cross_entropy(sliced_runs.mlp(params, x[owner == k]), y[owner == k])
                for optimizer in both:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in both:
                    optimizer.step()
        mean = {n: sum(params[n].detach() for params, _ in clients) / 4 for n in start}
    # Muon orthogonalises in bfloat16, where a rounding of the gradient may show.
    torch.testing.assert_close(found, mean, rtol=0, atol=1e-3)


@pytest.mark.slow
@needs_muon
def test_a_stopped_run_goes_on_with_both_states(tmp_path):
    words = (*MUON, *ROUNDS, "checkpoint.every=1")
    whole = sliced_runs.run(tmp_path / "whole", *words)
    sliced_runs.run(tmp_path / "run", *words, "rounds=1")
    found = sliced_runs.run(tmp_path / "run", *words, "resume=auto")
    torch.testing.assert_close(found, whole, rtol=0, atol=0)


def test_torch_without_muon_is_refused(tmp_path, monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(flfast.ConfigError, match=r"optimizer=muon with torch .*needs torch 2\.9"):
        sliced_runs.run(tmp_path / "run", *MUON)
