"""`cprjob bench priority`: how much saving strategies help, measured on real data.

`data` looks at the file and makes a job of it, `design` says which runs to make, `cli.trials` has the trainer image
make them, `verdict` compares them, `show` tells it; `command` is all of it in order.
"""

from cprjob_bench.commands.priority.command import PriorityOptions, bench_priority

__all__ = ["PriorityOptions", "bench_priority"]
