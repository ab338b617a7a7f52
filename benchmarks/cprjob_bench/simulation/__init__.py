"""Simulated jobs with the operator's own policy: the costs of a strategy without any training.

`simulated_job` has jobs, failures and presets, `recovery_strategies` the decisions, `engine` the simulation of one job,
and `study` the statistics of many. The running operator does not use them.
"""
