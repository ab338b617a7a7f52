"""`cprjob bench`: what parts of the product do on this machine, measured."""

from cpr_operator.cli.bench.app import bench

__all__ = ["bench"]
