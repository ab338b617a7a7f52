from itertools import permutations

import pytest

from cpr_trainer.trainer.group.meeting import NO_STATE, Hello, decide_meeting, missing_steps


def _hellos(*done: int) -> tuple[Hello, ...]:
    return tuple(Hello(rank, 1, 1, 1, step) for rank, step in enumerate(done))


@pytest.mark.parametrize(
    ("done", "source", "copy_to"),
    [
        ((5, 5, 5), 1, ()),  # nobody is behind
        ((5, 4, 5), 0, (1,)),  # the leader copies; of equals the lowest rank gives
        ((6, 5, NO_STATE), 0, (1, 2)),
        ((NO_STATE, 0, NO_STATE), 1, (0, 2)),  # a fresh state of step 0 is a state
        ((NO_STATE, NO_STATE, NO_STATE), None, (0, 2)),
    ],
)
def test_the_most_advanced_is_copied_to_all_behind(
    done: tuple[int, ...], source: int | None, copy_to: tuple[int, ...]
) -> None:
    for hellos in permutations(_hellos(*done)):
        meeting = decide_meeting(hellos, leader=1)

        assert (meeting.source, tuple(sorted(meeting.copy_to))) == (source, copy_to)
        assert meeting.done == max(done)


@pytest.mark.parametrize(
    ("done", "pushed", "applied", "steps"),
    [
        (9, 9, (9, 9), ()),
        (9, 8, (8, 8), (9,)),  # its all-reduce of 9 failed, another's did not
        (8, 9, (9, 8), ()),  # the one that completed 9 is gone: 9 comes again anyway
        (9, None, (9, 8), (9,)),  # killed between its pushes to two shards
        (9, None, (9, 9), ()),
        (9, None, (9, 2), (7, 8, 9)),  # a shard that went back: no more than was in flight
        (1, None, (0, 0), (1,)),
        (0, None, (0, 0), ()),
    ],
)
def test_steps_to_compute_again(
    done: int, pushed: int | None, applied: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    assert tuple(missing_steps(done, pushed, applied, window=2)) == steps
