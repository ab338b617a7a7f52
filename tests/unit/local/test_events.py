from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path

from cpr_operator.cluster.local.object_files import EVENTS_FILE, EventLine, append_event, read_events
from cpr_operator.cluster.local.pod_folder import PortBlocks
from cpr_operator.cluster.protocol import Event


def test_events_of_a_job_come_back_in_order_with_their_times(tmp_path: Path) -> None:
    append_event(tmp_path, "one", Event("Normal", "Started", 'a "first"\nword', "a"), 1.5)
    append_event(tmp_path, "other", Event("Normal", "Started", "", "b"), 2.0)
    append_event(tmp_path, "one", Event("Warning", "Failed", "it ended", "c"), 3.0)
    assert list(read_events(tmp_path, "one")) == [
        EventLine(1.5, "one", "Normal", "Started", 'a "first"\nword'),
        EventLine(3.0, "one", "Warning", "Failed", "it ended"),
    ]


def test_event_line_written_in_part_is_skipped(tmp_path: Path) -> None:
    append_event(tmp_path, "one", Event("Normal", "Started", "", "a"), 1.0)
    with (tmp_path / EVENTS_FILE).open("a") as file:
        file.write('{"time": 2.0, "uid": "on')
    assert [each.reason for each in read_events(tmp_path, "one")] == ["Started"]


#: A seed of these tests alone: another process with the same seed could hold a block.
SEED = int.from_bytes(os.urandom(8))


def first_block(seed: int) -> int:
    with closing(PortBlocks(random.Random(seed))) as ports:
        return ports.take()


def test_block_of_ports_belongs_to_one_run_before_it_listens() -> None:
    with closing(PortBlocks(random.Random(SEED))) as ports:
        taken = ports.take()
        assert abs(first_block(SEED) - taken) >= 3
        ports.give_back(taken)
        assert first_block(SEED) == taken
