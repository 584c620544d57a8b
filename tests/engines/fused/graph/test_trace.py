"""What tracing leaves behind in the process."""

import multiprocessing

import pytest
import torch


def gradient():
    torch.ones(3, requires_grad=True).sum().backward()


@pytest.mark.skipif(torch.cuda.is_available(), reason="autograd has a thread for every GPU")
def test_a_process_that_traced_first_may_still_be_forked():
    """As in a sweep whose first job is fused on one device and whose second starts ranks.

    Autograd looks for devices once in a process: a fixture traces before the first test.
    """
    gradient()
    process = multiprocessing.get_context("fork").Process(target=gradient)
    process.start()
    process.join()
    assert process.exitcode == 0
