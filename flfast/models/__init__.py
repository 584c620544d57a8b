"""Model builders and adapters. A builder gets the input shape and the number of classes."""
