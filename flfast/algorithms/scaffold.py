"""SCAFFOLD: control variates correct the drift of local training.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020, Algorithm 1, option II. https://arxiv.org/abs/1910.06378

    y <- y - lr * (g_k(y) - c_k + c),   from y = x, in K local steps
    c_k+ = c_k - c + (x - y) / (K * lr)
    x+ = x + server_lr * mean_k (y_k - x)
    c+ = c + 1 / population * sum_k (c_k+ - c_k)

Clients keep c_k and the server keeps c; both start at 0. The server broadcasts c with the model,
and clients upload c_k - c_k+. With momentum, |a|_1 of FedNova replaces K, so that c_k remains a
mean of gradients. Buffers are averaged.
"""

from typing import Literal

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.kit.control_variates import control_variates
from flfast.algorithms.kit.local_sgd import gradient_weight_of_sgd
from flfast.state.options import BelowOne, Positive


def scaffold(
    *,
    server_lr: Positive,
    momentum: BelowOne | None,
    nesterov: bool | None,
    local_optimizer_state: Literal["reset"],
) -> Algorithm:
    """Variance-reduced local training; all clients weigh the same, as in the paper.

    `local_optimizer_state` must be `reset`, because |a|_1 assumes that momentum starts at zero.
    """
    weight = gradient_weight_of_sgd("scaffold", momentum=momentum, nesterov=nesterov)
    return control_variates("scaffold", weight, server_lr=server_lr)
