"""Partitions: functions that assign every example to a client.

`conf/partition` explains their settings. Of N examples, `labels` are the classes, int64 [N];
`owner` the data's own clients, int64 [N], or None; `inputs` float32 [N, D]. `rng` is the only
source of randomness.
"""
