import sys

import pytest
import torch

from benchmarks import without_graphs


def test_flfast_runs_and_a_capture_is_refused(monkeypatch):
    ran = []

    def train():
        with pytest.raises(RuntimeError, match="switched off"), torch.cuda.graph("a graph"):
            pass
        ran.append(sys.argv[1:])

    monkeypatch.setattr(torch.cuda, "graph", torch.cuda.graph)  # put back afterwards
    monkeypatch.setattr(without_graphs.train, "main", train)
    monkeypatch.setattr(sys, "argv", ["without_graphs", "rounds=1"])
    without_graphs.main()
    assert ran == [["rounds=1"]]
