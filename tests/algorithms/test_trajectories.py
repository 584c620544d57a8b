"""Algorithms against the equations of their papers, in NumPy and double precision.

Every client takes part, with full batches; `w` is the server's model. FedDyn, FedNova, SCAFFOLD
and the server optimizers have their own files.
"""

import numpy as np
import pytest
from algorithms_by_name import assert_leaves_close, federation_of, personal_of, run, server_of
from engine_runs import mlp, net
from mlp_reference import Data, features, forward, grad, mean, plus, probabilities
from torch import nn

LR, ROUNDS, EPOCHS, SIZES = 0.2, 3, 2, (6, 3, 1)
UNIFORM = [1, 1, 1]
HEAD, BODY = ("2.weight", "2.bias"), ("0.weight", "0.bias")


def only(names, tree):
    return {name: leaf for name, leaf in tree.items() if name in names}


def samples(data):
    return [data.size(k) for k in range(len(SIZES))]


def steps(data, k, r, num=EPOCHS, start=0):
    return [data.epoch(k, r, start + e) for e in range(num)]


def sgd(w, data, k, r, *, names=None, num=EPOCHS, start=0):
    for x, y in steps(data, k, r, num, start):
        g = grad(w, x, y)
        w = plus(w, g if names is None else only(names, g), -LR)
    return w


def split_rounds(w, data, own, local):
    """Parameters `own` stay on the clients; `local(w, k, r)` is local training."""
    kept = [only(own, w)] * len(SIZES)
    for r in range(1, ROUNDS + 1):
        done = [local({**w, **kept[k]}, k, r) for k in range(len(SIZES))]
        kept = [only(own, d) for d in done]
        w = {**mean(done, samples(data)), **only(own, w)}
    return w, [{**w, **own_k} for own_k in kept]


def fedavg(w, data):
    for r in range(1, ROUNDS + 1):
        w = mean([sgd(w, data, k, r) for k in range(len(SIZES))], samples(data))
    return w, None


def fedprox(w, data, mu=0.7):
    for r in range(1, ROUNDS + 1):
        done = []
        for k in range(len(SIZES)):
            w_k = w
            for x, y in steps(data, k, r):
                pulled = {n: g + mu * (w_k[n] - w[n]) for n, g in grad(w_k, x, y).items()}
                w_k = plus(w_k, pulled, -LR)
            done.append(w_k)
        w = mean(done, samples(data))
    return w, None


def local(w, data):
    own = [w] * len(SIZES)
    for r in range(1, ROUNDS + 1):
        own = [sgd(own[k], data, k, r) for k in range(len(SIZES))]
    return w, own


def fedper(w, data):
    return split_rounds(w, data, HEAD, lambda w, k, r: sgd(w, data, k, r))


def lg_fedavg(w, data):
    return split_rounds(w, data, BODY, lambda w, k, r: sgd(w, data, k, r))


def fedrep(w, data, head_epochs=3):
    def local(w, k, r):
        w = sgd(w, data, k, r, names=HEAD, num=head_epochs)
        return sgd(w, data, k, r, names=BODY, start=head_epochs)

    return split_rounds(w, data, HEAD, local)


def fedbabu(w, data):
    for r in range(1, ROUNDS + 1):
        done = [sgd(w, data, k, r, names=BODY) for k in range(len(SIZES))]
        w = mean(done, samples(data))
    return w, None


def cosine_grad(z, a):
    """(cosine [B], its gradient in z [B, D]) of rows."""
    nz, na = (np.linalg.norm(v, axis=1, keepdims=True) for v in (z, a))
    c = (z * a).sum(1, keepdims=True) / (nz * na)
    return c[:, 0], a / (nz * na) - c * z / nz**2


def moon(w, data, mu=2.0, tau=0.5):
    previous = [w] * len(SIZES)
    for r in range(1, ROUNDS + 1):
        done = []
        for k in range(len(SIZES)):
            w_k = w
            for x, y in steps(data, k, r):
                z = features(w_k, x)
                s_glob, d_glob = cosine_grad(z, features(w, x))
                s_prev, d_prev = cosine_grad(z, features(previous[k], x))
                e_glob, e_prev = np.exp(s_glob / tau), np.exp(s_prev / tau)
                p_prev = (e_prev / (e_glob + e_prev))[:, None]
                d = mu * p_prev * (d_prev - d_glob) / tau / len(y)
                w_k = plus(w_k, grad(w_k, x, y, of_features=d), -LR)
            done.append(w_k)
        previous, w = done, mean(done, samples(data))
    return w, None


def ditto(w, data, lam=0.7):
    v = [w] * len(SIZES)
    for r in range(1, ROUNDS + 1):
        for k in range(len(SIZES)):
            for x, y in steps(data, k, r):
                pulled = {n: g + lam * (v[k][n] - w[n]) for n, g in grad(v[k], x, y).items()}
                v[k] = plus(v[k], pulled, -LR)
        w = mean([sgd(w, data, k, r) for k in range(len(SIZES))], samples(data))
    return w, v


def pfedme(w, data, lam=3.0, inner_steps=3, personal_lr=0.1, beta=0.8):
    theta = [w] * len(SIZES)
    for r in range(1, ROUNDS + 1):
        done = []
        for k in range(len(SIZES)):
            w_k, t = w, w
            for x, y in steps(data, k, r):
                for _ in range(inner_steps):
                    g = {n: d + lam * (t[n] - w_k[n]) for n, d in grad(t, x, y).items()}
                    t = plus(t, g, -personal_lr)
                w_k = {n: w_k[n] - LR * lam * (w_k[n] - t[n]) for n in w}
            theta[k] = t
            done.append(w_k)
        average = mean(done, UNIFORM)
        w = {n: (1 - beta) * w[n] + beta * average[n] for n in w}
    return w, theta


def norm(tree):
    return np.sqrt(sum((leaf**2).sum() for leaf in tree.values()))


def per_fedavg(w, data, alpha=0.3, gradients="first_order", delta=0.01, batches="disjoint"):
    parts = 2 if gradients == "first_order" else 3

    def meta(w, x, y):
        each = [(x[i::parts], y[i::parts]) for i in range(parts)]
        if batches == "same" or len(y) < 2 * parts:
            each = [(x, y)] * parts
        u = plus(w, grad(w, *each[0]), -alpha)
        v = grad(u, *each[1])
        if gradients == "first_order":
            return v
        if gradients == "exact":  # the complex-step derivative along v, exact to rounding
            along = grad(plus(w, v, 1e-30j), *each[2])
            return {n: v[n] - alpha * along[n].imag / 1e-30 for n in v}
        h = delta * (1 + norm(w)) / norm(v)
        ahead, behind = (grad(plus(w, v, sign * h), *each[2]) for sign in (1, -1))
        return {n: v[n] - alpha * (ahead[n] - behind[n]) / (2 * h) for n in v}

    for r in range(1, ROUNDS + 1):
        done = []
        for k in range(len(SIZES)):
            w_k = w
            for x, y in steps(data, k, r):
                w_k = plus(w_k, meta(w_k, x, y), -LR)
            done.append(w_k)
        w = mean(done, UNIFORM)
    return w, None


def apfl(w, data, *, alpha, adaptive):
    v, shares = [w] * len(SIZES), [alpha] * len(SIZES)
    for r in range(1, ROUNDS + 1):
        done = []
        for k in range(len(SIZES)):
            w_k = w
            for x, y in steps(data, k, r):
                share = shares[k]
                m = {n: share * v[k][n] + (1 - share) * w_k[n] for n in w}
                g = grad(m, x, y)
                along = sum(((v[k][n] - w_k[n]) * g[n]).sum() for n in w)
                v[k], w_k = plus(v[k], g, -LR * share), plus(w_k, grad(w_k, x, y), -LR)
                if adaptive:
                    shares[k] = min(max(share - LR * along, 0.0), 1.0)
            done.append(w_k)
        w = mean(done, UNIFORM)
    return w, [
        {n: a * v_k[n] + (1 - a) * w[n] for n in w} for v_k, a in zip(v, shares, strict=True)
    ]


CASES = [
    (fedavg, {}),
    (fedprox, {"mu": 0.7}),
    (local, {}),
    (fedper, {}),
    (fedrep, {"head_epochs": 3}),
    (lg_fedavg, {}),
    (fedbabu, {}),
    (moon, {"mu": 2.0, "tau": 0.5}),
    (ditto, {"lam": 0.7}),
    (pfedme, {"lam": 3.0, "inner_steps": 3, "personal_lr": 0.1, "beta": 0.8}),
    (per_fedavg, {"alpha": 0.3}),
    (per_fedavg, {"alpha": 0.3, "batches": "same"}),
    (per_fedavg, {"alpha": 0.3, "gradients": "hessian_free", "delta": 0.01}),
    (per_fedavg, {"alpha": 0.3, "gradients": "exact"}),
    (per_fedavg, {"alpha": 0.3, "gradients": "exact", "batches": "same"}),
    (apfl, {"alpha": 0.4, "adaptive": False}),
    (apfl, {"alpha": 0.4, "adaptive": True}),
    (apfl, {"alpha": 0.999, "adaptive": True}),
]
SPLIT = {fedper, fedrep, lg_fedavg, fedbabu}


@pytest.mark.parametrize(
    "model", [lambda: net(lambda: nn.Linear(5, 3)), mlp], ids=["convex", "mlp"]
)
@pytest.mark.parametrize(
    ("equations", "options"), CASES, ids=lambda case: getattr(case, "__name__", "")
)
def test_trajectories_follow_the_papers(equations, options, model, make_data, make_federation):
    net = model()
    if len(net) == 1 and equations in SPLIT | {moon}:
        pytest.skip("one layer has no body, and its features are the inputs")
    federation = federation_of(
        make_data,
        make_federation,
        equations.__name__,
        net,
        sizes=SIZES,
        algorithm=options,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
    )
    start = {n: p.double().numpy() for n, p in federation.initial["params"].items()}
    run(federation)
    server, personal = equations(start, Data(federation.data), **options)
    assert_leaves_close(server_of(federation), server, tol=1e-6)
    for k, expected in enumerate(personal or []):
        assert_leaves_close(personal_of(federation, k), expected, tol=1e-6)


def normalised(x):
    """(rows of zero mean and unit variance, mean [D], unbiased variance [D]) of a batch [B, D]."""
    centred, variance = x - x.mean(0), x.var(0)
    return centred / np.sqrt(variance + 1e-5), x.mean(0), variance * len(x) / (len(x) - 1)


def test_fedbn_follows_the_paper(make_data, make_federation):
    """BatchNorm of the inputs, then a linear layer; scale, shift and statistics are local."""
    sizes, model = (6, 3, 4), net(lambda: nn.BatchNorm1d(5), lambda: nn.Linear(5, 3))
    federation = federation_of(
        make_data,
        make_federation,
        "fedbn",
        model,
        sizes=sizes,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
    )
    start = {n: p.double().numpy() for n, p in federation.initial["params"].items()}
    run(federation)

    data, scale, shift = Data(federation.data), np.ones((3, 5)), np.zeros((3, 5))
    means, variances = np.zeros((3, 5)), np.ones((3, 5))
    w = {"0.weight": start["1.weight"], "0.bias": start["1.bias"]}
    for r in range(1, ROUNDS + 1):
        done = []
        for k in range(3):
            w_k = w
            for x, y in steps(data, k, r):
                x, mean_x, var_x = normalised(x)
                z = scale[k] * x + shift[k]
                of_z = (
                    (probabilities(forward(w_k, z)[1]) - np.eye(3)[y]) @ w_k["0.weight"] / len(y)
                )
                w_k = plus(w_k, grad(w_k, z, y), -LR)
                scale[k], shift[k] = scale[k] - LR * (of_z * x).sum(0), shift[k] - LR * of_z.sum(0)
                means[k], variances[k] = (
                    0.9 * means[k] + 0.1 * mean_x,
                    0.9 * variances[k] + 0.1 * var_x,
                )
            done.append(w_k)
        w = mean(done, UNIFORM)
    shared = {"1.weight": w["0.weight"], "1.bias": w["0.bias"]}
    assert_leaves_close(server_of(federation), {**start, **shared}, tol=1e-6)
    for k in range(3):
        assert_leaves_close(
            personal_of(federation, k),
            {"0.weight": scale[k], "0.bias": shift[k], **shared},
            tol=1e-6,
        )
        own = federation.engine.site.states.get(k)["own"]["buffers"]
        assert_leaves_close(
            {"mean": own["0.running_mean"], "var": own["0.running_var"]},
            {"mean": means[k], "var": variances[k]},
            tol=1e-6,
        )
