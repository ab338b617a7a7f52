from cluster.harness.fixtures import *  # noqa: F403 -- pytest takes fixtures and hooks from here
