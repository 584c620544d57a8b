"""A softmax classifier in NumPy with at most one hidden layer, and its hand-written gradient."""

import numpy as np

from flfast.state.randomness import generator


def forward(w, x):
    """(inputs of the last layer, logits) of `Sequential(Linear[, Tanh, Linear])`."""
    z = x
    if "2.weight" in w:
        z = np.tanh(x @ w["0.weight"].T + w["0.bias"])
    last = "2" if "2.weight" in w else "0"
    return z, z @ w[f"{last}.weight"].T + w[f"{last}.bias"]


def features(w, x):
    return forward(w, x)[0]


def probabilities(logits):
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def grad(w, x, y, *, of_features=None):
    """Gradient of the mean cross-entropy plus an objective of the features.

    `of_features` is the gradient of that objective with respect to the features [B, D].
    """
    z, logits = forward(w, x)
    d = (probabilities(logits) - np.eye(logits.shape[1])[y]) / len(y)
    last = "2" if "2.weight" in w else "0"
    g = {f"{last}.weight": d.T @ z, f"{last}.bias": d.sum(0)}
    if last == "2":
        back = d @ w["2.weight"] + (0 if of_features is None else of_features)
        h = back * (1 - z**2)
        g |= {"0.weight": h.T @ x, "0.bias": h.sum(0)}
    return g


def plus(a, b, scale=1.0):
    return {n: a[n] + scale * b[n] if n in b else a[n] for n in a}


def mean(trees, weights):
    total = sum(weights)
    return {
        n: sum(t[n] * k for t, k in zip(trees, weights, strict=True)) / total for n in trees[0]
    }


class Data:
    """The full batches of every client and local epoch, in the order of the run."""

    def __init__(self, data):
        self.data = data

    def size(self, k):
        return len(self.data.train_clients.indices_of(k))

    def epoch(self, k, round_idx, e):
        order = generator(self.data.seed, "shuffle", round_idx, k, e).permutation(self.size(k))
        at = self.data.train_clients.indices_of(k)[order]
        examples = self.data.examples
        return examples.inputs[at].double().numpy(), examples.targets[at].numpy()
