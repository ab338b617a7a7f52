"""Simulated jobs that are decided by the operator's own policy: what a strategy costs, before anything is trained.

`job` is what is simulated, `failures` when it fails, `strategies` who decides, `engine` what comes of it, `study` many
jobs and their figures, `presets` the jobs of the paper. Nothing here is part of the running operator.
"""
