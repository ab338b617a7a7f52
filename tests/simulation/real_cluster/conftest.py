"""Fixtures of the real cluster, shared with its tests."""

from cluster.conftest import clicks, cluster, pytest_runtest_makereport, space

__all__ = ["clicks", "cluster", "pytest_runtest_makereport", "space"]
