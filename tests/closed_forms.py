"""Closed forms of the conformance rows by another way: recursions, step by step."""

import math
from statistics import NormalDist, fmean, median, variance

import numpy as np

SIZES, TARGETS = (1, 3), (1, 5)
PHI = NormalDist().cdf


def fixed_point(gains, sizes, targets):
    """Where the weighted changes gain * (target - z) of both clients cancel."""
    z, step = 0.0, 1 / sum(g * n for g, n in zip(gains, sizes, strict=True))
    for _ in range(100):
        z += step * sum(n * g * (b - z) for g, n, b in zip(gains, sizes, targets, strict=True))
    return z


def gain(steps, *, mu=0.0):
    """The share of the way from the start to 1 that local steps take, step by step."""
    y = 0.0
    for _ in range(steps):
        y -= 0.05 * (4 * (y - 1) + mu * y)
    return y


def server_steps(next_state, *, rounds):
    """Sum of the steps m / sqrt(v) of two coordinates, whose change is 1 in all rounds."""
    moved = m = v = 0.0
    for _ in range(rounds):
        m, v = next_state(m, v)
        moved += 2 * 0.1 * m / math.sqrt(v)
    return moved


def server_momentum():
    """Share of the loss that is left after five rounds."""
    e, v = 1.0, 0.0
    for _ in range(5):
        v = 0.9 * v + e * (0.25 * (1 - 0.96) + 0.75 * (1 - 0.96**3))
        e -= 0.5 * v
    return e**2


def sgd_rounds(*, nesterov=False, keep=False):
    """The same with momentum in local steps, of weight and bias apart."""
    params, buffers = np.array([3.0, 3.0]), {0: np.zeros(2), 1: np.zeros(2)}
    for _ in range(5):
        changes = []
        for client, steps in ((0, 1), (1, 3)):
            local = params.copy()
            v = buffers[client] if keep else np.zeros(2)
            for _ in range(steps):
                grad = np.full(2, 2 * (local.sum() - 5))
                v = 0.9 * v + grad
                local -= 0.01 * (grad + 0.9 * v if nesterov else v)
            buffers[client] = v
            changes.append(local - params)
        params = params + 0.25 * changes[0] + 0.75 * changes[1]
    return (params.sum() - 5) ** 2  # which began at 1


def decayed_fixed_point():
    """Where rounds of steps with weight decay end, weight and bias apart."""
    params = np.array([3.0, -1.0])
    for _ in range(200):
        changes = []
        for steps, target in ((2, 1), (6, 5)):
            local = params.copy()
            for _ in range(steps):
                local -= 0.05 * (2 * (local.sum() - target) + local)
            changes.append(local - params)
        params = params + 0.25 * changes[0] + 0.75 * changes[1]
    return params.sum()


def adam_moves(*, lr, rounds, decay=0.0, begin=0.0):
    """How far weight and bias are together, with a gradient of -1 in all steps."""
    params = begin
    for _ in range(rounds):
        changes = []
        for steps in (1, 3):
            local, mean, square = params, 0.0, 0.0
            for step in range(1, steps + 1):
                mean, square = 0.9 * mean - 0.1, 0.999 * square + 0.001
                unit = mean / (1 - 0.9**step) / math.sqrt(square / (1 - 0.999**step))
                local = local * (1 - lr * decay) - lr * unit
            changes.append(local - params)
        params += 0.25 * changes[0] + 0.75 * changes[1]
    return 2 * params


def clipped_moves(shorten, *, rate, steps):
    """How far z moves in steps along a huge gradient, shortened as a vector."""
    return steps * rate * float(shorten(np.full(2, 1e5)).sum())


def by_norm(limit):
    """Shortens vectors to a norm."""
    return lambda v: v * min(1.0, limit / float(np.linalg.norm(v)))


def scheduled(rates):
    """Share of the loss that is left after a step with each rate."""
    e = 1.0
    for lr in rates:
        e -= lr * 2 * (e + e)
    return e**2


CLIENTS = ([0.0, -2.0], [-10.0, -14.0] * 3)
ALL = [*CLIENTS[0], *CLIENTS[1]]


def running(batches, rounds=3):
    """Running mean and variance of a layer with momentum 1/2, whose clients are averaged."""
    mean, var, num = 0.0, 1.0, sum(map(len, batches))
    for _ in range(rounds):
        after = [((mean + fmean(x)) / 2, (var + variance(x)) / 2, len(x) / num) for x in batches]
        mean, var = (sum(row[i] * row[2] for row in after) for i in (0, 1))
    return mean, var


def output(mean, var):
    """The size of the output at -20."""
    return abs(0.25 * (-20 - mean) / math.sqrt(var))


def frozen_output():
    """The size of the output at -20 of a slope that full-batch steps fit to the targets 10."""
    x, slope = np.array(ALL), 0.25
    for _ in range(200):
        slope -= 0.004 * float(np.mean(2 * (slope * x - 10) * x))
    return abs(-20 * slope)


WISHES = (1, 2, 4, 8, 11, 1000, 2000)


def rule_fixed_point(rule):
    """Where steps by what a rule makes of the clients' changes end, plus 100."""
    z = 0.0
    for _ in range(200):
        z += rule([0.5 * (b - z) for b in WISHES])
    return z + 100


def krum_order(rows, attackers):
    """Numbers in the order of their sums of squared distances to the nearest others."""
    near = max(len(rows) - attackers - 2, 2)
    scores = [sum(sorted((x - y) ** 2 for y in rows)[1 : near + 1]) for x in rows]
    return [x for _, x in sorted(zip(scores, rows, strict=True))]


def trimmed(rows):
    """The mean without two at each end."""
    return fmean(sorted(rows)[2:-2])


def bulyan(rows):
    """Krum five times, for one attacker; then the mean of the three closest to the median."""
    left, chosen = list(rows), []
    for _ in range(5):
        chosen.append(krum_order(left, 1)[0])
        left.remove(chosen[-1])
    middle = median(chosen)
    return fmean(sorted(chosen, key=lambda x: abs(x - middle))[:3])


def by_weight(rows):
    """The median of rows, of which the second one counts five times."""
    return median([*rows, *[rows[1]] * 4])


def centered(rows):
    """The mean of rows that are clipped to half of 8 on either side, around zero."""
    return fmean(max(-4, min(4, x)) for x in rows)


def attacked(factor=None):
    """Share of the loss that is left after five rounds, of which one client of five attacks."""
    e = 1.0
    for _ in range(5):
        honest = [-0.2 * e] * 4
        e += fmean([*honest, factor * honest[0]] if factor is not None else honest)
    return e**2


def clipped_end(weights, *, limit=0.1, per_example=False):
    """Where clipped changes of two clients at 0, and of a third one far away, cancel; plus 10."""
    clip, params = by_norm(limit), np.ones(2)
    for _ in range(500):
        grads = [np.full(2, 2 * params.sum())] * 2 + [np.full(2, -1e5)]
        changes = [-0.05 * clip(g) if per_example else clip(-0.05 * g) for g in grads]
        params = params + sum(w * c for w, c in zip(weights, changes, strict=True))
    return params.sum() + 10


def root_of(delta_of):
    """The epsilon at which delta is 1e-5."""
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > 1e-5 else (low, middle)
    return low


def gaussian_delta(eps, sigma):
    """Delta of a Gaussian mechanism of sensitivity 1, by the mass of both densities."""
    at = eps * sigma**2 + 0.5  # where the ratio of the densities of N(1) and N(0) is exp(eps)
    return PHI((1 - at) / sigma) - math.exp(eps) * PHI(-at / sigma)


GRID = np.arange(-20, 21, 1e-3)
WITHOUT, WITH = (np.exp(-((GRID - at) ** 2) / 2) / math.sqrt(2 * math.pi) for at in (0, 1))


def sampled_delta(eps):
    """Delta of one round of a Poisson sample with rate 1/2 and noise 1, by the sum over a grid."""
    mixed = (WITHOUT + WITH) / 2
    both = (mixed - math.exp(eps) * WITHOUT, WITHOUT - math.exp(eps) * mixed)
    return max(float(np.maximum(gap, 0).sum()) * 1e-3 for gap in both)


TWO = fixed_point([gain(2), gain(6)], SIZES, TARGETS)
NORM, VALUE = by_norm(3), lambda v: np.clip(v, -3, 3)
PLAIN, CLEAN = sgd_rounds(), attacked()
CLOSED = {
    "closed_form_adam": [
        adam_moves(lr=0.01, rounds=10),
        *[100 + adam_moves(lr=0.1, rounds=200, decay=2, begin=-1.0)] * 2,
    ],
    "closed_form_attacks": [attacked(-2), attacked(3), attacked(-0.5), CLEAN, CLEAN],
    "closed_form_batchnorm": [
        output(*running(CLIENTS)),
        fmean(output(*running([own])) for own in CLIENTS),
        output(0, 1),
        output(fmean(ALL), variance(ALL)),
        frozen_output(),
    ],
    "closed_form_ditto": [sum((4 * b + 2 * TWO) / 6 for b in TARGETS) / 2, TWO],
    "closed_form_fedavg": [
        fixed_point([gain(1), gain(3)], SIZES, TARGETS),
        TWO,
        fixed_point([gain(2), gain(6)], (1, 1), TARGETS),
    ],
    "closed_form_fednova": [fixed_point([gain(2) / 2, gain(6) / 6], SIZES, TARGETS)],
    "closed_form_fedprox": [fixed_point([gain(2, mu=2), gain(6, mu=2)], SIZES, TARGETS), TWO],
    "closed_form_foolsgold": [CLEAN],
    "closed_form_gradient_clipping": [
        *[clipped_moves(clip, rate=0.01, steps=25) for clip in (NORM, VALUE, NORM)],
        clipped_moves(by_norm(0.5), rate=1, steps=10),
    ],
    "closed_form_head": [TWO, 2 * 2 * 4],
    "closed_form_local_momentum": [PLAIN, sgd_rounds(nesterov=True), sgd_rounds(keep=True), PLAIN],
    "closed_form_lora": [2 * 2 * 4, 2 * 4 * 4],
    "closed_form_lr_schedules": [
        scheduled([0.05 * math.cos(math.pi * r / 10) ** 2 for r in range(5)]),
        scheduled([0.05, 0.025, 0.0125, 0.00625, 0.003125]),
        scheduled([0.05, 0.05, 0.025, 0.025, 0.0125]),
        scheduled([0.0125, 0.025, 0.0375, 0.05, 0.05]),
    ],
    "closed_form_privacy_clipping": [
        *[clipped_end([1 / 3, 1 / 3, 1 / 3])] * 2,
        clipped_end([3 / 7, 3 / 7, 1 / 7]),
        clipped_end([3 / 7, 3 / 7, 1 / 7], limit=1, per_example=True),
    ],
    "closed_form_privacy_noise": [
        math.hypot(*[0.05 * 2 / 2] * 2),
        math.hypot(*[0.05 * 2 / 2] * 2 * 2),  # weight and bias, of two clients
        math.hypot(*[0.25 * 0.05 * 2 / 2 / 2] * 2 * 2),
        root_of(lambda eps: gaussian_delta(eps, 20 / 2 / math.sqrt(10))),
        root_of(sampled_delta),
    ],
    "closed_form_robust_rules": [
        rule_fixed_point(lambda rows: fmean([*rows, *[rows[1]] * 4])),
        rule_fixed_point(median),
        rule_fixed_point(trimmed),
        rule_fixed_point(lambda rows: krum_order(rows, 2)[0]),
        rule_fixed_point(lambda rows: fmean(krum_order(rows, 2)[:3])),
        rule_fixed_point(bulyan),
        rule_fixed_point(by_weight),
        rule_fixed_point(centered),
        20 * 2 * 0.01,
    ],
    "closed_form_scaffold": [3.0],
    "closed_form_server_adaptive": [
        server_steps(lambda m, v: (0.9 * m + 0.1, 0.99 * v + 0.01), rounds=10),
        server_steps(lambda m, v: (0.9 * m + 0.1, v + 0.01), rounds=10),
        server_steps(lambda m, v: (1.0, v + 1), rounds=10),
    ],
    "closed_form_server_momentum": [
        server_momentum(),
        (0.25 * 0.96 + 0.75 * 0.96**3) ** 10,
    ],
    "closed_form_weight_decay": [decayed_fixed_point()] * 3,
}
"""By row, the numbers of its claims in their order."""
