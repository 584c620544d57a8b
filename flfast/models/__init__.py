"""Model builders and adapters; `conf/model` explains their settings.

A builder gets the shape of one input and the number of classes C. Those of tokens also get the
size of the inputs' vocabulary, and the task: `language` predicts at every position, other tasks at
the last token that is not padding.
"""
