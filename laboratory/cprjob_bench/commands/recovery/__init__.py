"""`cprjob bench recovery`: how long training stands still when a member is lost, on this machine.

`design` says which members are killed and in which job, `killing` does it, `outage` finds the pause in a trace of
steps, `show` prints the result; `command` is all of it in order.
"""

from cprjob_bench.commands.recovery.command import RecoveryOptions, bench_recovery

__all__ = ["RecoveryOptions", "bench_recovery"]
