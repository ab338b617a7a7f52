"""`cprjob bench snapshot`: the cost of a shard's saves on this machine, and their effect on training.

`store` reads where to save, `job` makes a job of one shard over it, `cli.trials` has the trainer image measure it,
`summary` boils the figures down, `show` tells them; `command` is all of it in order.
"""

from cprjob_bench.commands.snapshot.command import SnapshotOptions, bench_snapshot

__all__ = ["SnapshotOptions", "bench_snapshot"]
