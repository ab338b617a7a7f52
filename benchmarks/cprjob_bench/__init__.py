"""What measures CPRJob, apart from it: benches of real jobs on this machine, and simulated ones.

`app` has the commands, and finds its way into `cprjob` by an entry point. `commands` does their work, `simulation` has
the simulated jobs.
"""
