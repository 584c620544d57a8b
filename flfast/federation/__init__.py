"""The outer loop of federated training: rounds, cohorts and plans."""
