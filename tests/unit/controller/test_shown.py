"""What `kubectl get cprjobs` prints: rounded, with units."""

import re
from typing import Any

from cpr_operator.api import crd
from simulation.control_plane.failpoints import kill
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import Scenario, spec, trained


def row(job: dict[str, Any]) -> dict[str, str]:
    """The printed cells by column: what lies at each path, as kubectl prints it."""

    def at(path: str) -> str:
        node: Any = job
        for name in path.split(".")[1:]:
            node = node.get(name) if isinstance(node, dict) else None
        return "" if node is None else str(node)

    return {name: at(path) for name, _, path, *_ in crd.COLUMNS}


async def test_figures_are_short_and_have_units() -> None:
    struck = ((trained(900), kill("shard", 1)),)
    document = spec(data__samples=1900, snapshots__interval={"mode": "Fixed", "seconds": 90})
    driver = Simulation(Scenario("shown", struck, document, replaced=("shard/1",)))
    driver.cluster.total = 1900
    life = await driver.run()
    printed = [row({"status": status}) for status in life.cluster.statuses]
    last = printed[-1]
    assert (last["Phase"], last["Progress"], last["Interval"], last["AUC"]) == ("Succeeded", "100%", "90 s", "1.0000")
    for cells in printed:
        assert re.fullmatch(r"(\d{1,3}%)?", cells["Progress"])
        assert re.fullmatch(r"([\d.]+ (s|min|h))?", cells["Interval"])
        assert re.fullmatch(r"([01]\.\d{4})?", cells["AUC"])
        assert all(len(cells[name]) <= len("0.01234") for name in ("Spent", "Limit"))
    assert 0 < float(last["Spent"]) < float(last["Limit"])
