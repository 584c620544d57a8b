"""Model builders and adapters; `conf/model` explains their settings.

A builder gets the shape of one input and the number of classes C.
"""
