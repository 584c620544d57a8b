"""Differential privacy: bounds on what clients send, noise, and how much privacy is left.

`conf/privacy` explains the settings of mechanisms. They also get `participation`, which says who
takes part in a round, and the `rounds` of the run.
"""
