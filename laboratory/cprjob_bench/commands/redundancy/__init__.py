"""`cprjob bench redundancy`: what it costs that a lost shard comes back, and how fast it does, beside ECRec's way.

`design` says what the modes are and which jobs they train, `contender` is a mode in the windows of `bench train`,
`kills` kills shards, `summary` reduces the figures, `show` tells them; `command` is all of it in order.
"""

from cprjob_bench.commands.redundancy.command import RedundancyOptions, bench_redundancy

__all__ = ["RedundancyOptions", "bench_redundancy"]
