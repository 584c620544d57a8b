"""Personal algorithms against their papers' equations, written down in NumPy in double precision.

Batches are all of a client's examples; every client takes part; `w` is the server's model.
"""

import numpy as np
import pytest
from algorithms_by_name import close, federation_of, personal_of, run, server_of
from engines import mlp, net
from mlp_reference import Data, features, grad, mean, plus
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
    """Parameters `own` stay with the clients, `local(w, k, r)` is their training."""
    kept = [only(own, w)] * len(SIZES)
    for r in range(1, ROUNDS + 1):
        done = [local({**w, **kept[k]}, k, r) for k in range(len(SIZES))]
        kept = [only(own, d) for d in done]
        w = {**mean(done, samples(data)), **only(own, w)}
    return w, [{**w, **own_k} for own_k in kept]


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


def fedbn(w, data):
    for r in range(1, ROUNDS + 1):
        w = mean([sgd(w, data, k, r) for k in range(len(SIZES))], UNIFORM)
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
        ahead, behind = (grad(plus(w, v, sign * delta), *each[2]) for sign in (1, -1))
        return {n: v[n] - alpha * (ahead[n] - behind[n]) / (2 * delta) for n in v}

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
    (fedper, {}),
    (fedrep, {"head_epochs": 3}),
    (lg_fedavg, {}),
    (fedbabu, {}),
    (fedbn, {}),
    (moon, {"mu": 2.0, "tau": 0.5}),
    (ditto, {"lam": 0.7}),
    (pfedme, {"lam": 3.0, "inner_steps": 3, "personal_lr": 0.1, "beta": 0.8}),
    (per_fedavg, {"alpha": 0.3}),
    (per_fedavg, {"alpha": 0.3, "batches": "same"}),
    (per_fedavg, {"alpha": 0.3, "gradients": "hessian_free", "delta": 0.01}),
    (apfl, {"alpha": 0.4, "adaptive": False}),
    (apfl, {"alpha": 0.4, "adaptive": True}),
    (apfl, {"alpha": 0.999, "adaptive": True}),
]
SPLIT = {fedper, fedrep, lg_fedavg, fedbabu}


@pytest.mark.parametrize(
    "model", [mlp, lambda: net(lambda: nn.Linear(5, 3))], ids=["mlp", "convex"]
)
@pytest.mark.parametrize(
    ("equations", "options"), CASES, ids=lambda case: getattr(case, "__name__", "")
)
def test_the_papers_equations(equations, options, model, make_data, make_federation):
    net = model()
    if len(net) == 1 and equations in SPLIT | {moon}:
        pytest.skip("one layer has no head and body, and features that do not change")
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
    close(server_of(federation), server, tol=1e-6)
    for k, expected in enumerate(personal or []):
        close(personal_of(federation, k), expected, tol=1e-6)
