"""The commands of `cprjob` that work with jobs on a cluster, with the user's own rights.

`app` has the commands, `show` turns jobs into text, and `follow` watches a job until it is over.
"""

from cpr_operator.cli.jobs.app import jobs

__all__ = ["jobs"]
