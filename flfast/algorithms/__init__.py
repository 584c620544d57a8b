"""Federated algorithms, one per file, and what they share.

`conf/algorithm` explains their settings. They also get what they name of `initial`, the weights
before round 1, `batchnorm`, those of its BatchNorm layers, `seed` and `num_clients`.
"""
