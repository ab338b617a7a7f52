"""The commands of README.md as a user runs them. The fixtures of the cluster do the part of the administrator.

Its nodes pull nothing: the images that they have get the names that the examples print.
"""

from pathlib import Path

import pytest

from cluster.harness import Cluster, Space
from cluster.pages import follow


@pytest.mark.usefixtures("printed_images")
@pytest.mark.timeout(840, func_only=True)
def test_commands_of_the_readme_lead_to_a_finished_job(cluster: Cluster, space: Space, tmp_path: Path) -> None:
    follow("README.md", cluster, space, tmp_path)
