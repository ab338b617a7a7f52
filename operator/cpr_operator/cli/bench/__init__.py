"""`cprjob bench`: measurements on this machine."""

from cpr_operator.cli.bench.app import bench

__all__ = ["bench"]
