"""Benchmarks of CPRJob: benches of real jobs on this machine, and simulated jobs.

`app` adds the commands to `cprjob` by an entry point, `commands` implements them, and `simulation` has the simulated
jobs.
"""
