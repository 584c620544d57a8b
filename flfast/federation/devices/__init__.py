"""Models of clients' devices: how fast they are, when they are available, how often they fail.

`conf/devices` explains their settings.
"""
