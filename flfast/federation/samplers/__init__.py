"""Samplers: functions that draw the cohort of a round; `conf/sampler` explains their settings.

They get the size of the population, `num_clients`, and the round's generator, `rng`; what else
they may ask for is in `federation/sampling.py`.
"""
