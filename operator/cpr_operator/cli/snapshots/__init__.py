"""`cprjob snapshots`: which points a job can be restored to, whether they verify, and pruning by hand.

`source` finds the store, the trainer image's own code looks into it, `show` tells what it found; `command` is all of
it.
"""

from cpr_operator.cli.snapshots.app import snapshots

__all__ = ["snapshots"]
