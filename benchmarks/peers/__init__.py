"""Other simulators, each running a workload in its own words.

Every module runs one simulator and prints what `benchmarks.plain` prints: seconds of every round,
and what was computed in them. A round is FedAvg with the workload's model, data and local steps.
"""
