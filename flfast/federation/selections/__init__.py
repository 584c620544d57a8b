"""Selections: wrappers of an algorithm that choose which clients of a cohort train.

`conf/selection` explains their settings. `num_clients` is the size of the population, held-out
clients included.
"""
