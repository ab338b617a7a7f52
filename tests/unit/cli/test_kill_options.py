from __future__ import annotations

import signal

import pytest

from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.kill_options import Kill, check_targets, due, parse_kill


@pytest.mark.parametrize(
    ("text", "kill"),
    [
        ("shard/1@0.5", Kill("shard", 1, 0.5, signal.SIGKILL)),
        ("trainer/0@.25:TERM", Kill("trainer", 0, 0.25, signal.SIGTERM)),
        ("shard/1@0.5:POD", Kill("shard", 1, 0.5, signal.SIGKILL, pod=True)),
        ("shard/12@0:SIGSTOP", Kill("shard", 12, 0.0, signal.SIGSTOP)),
    ],
)
def test_parse_kill(text: str, kill: Kill) -> None:
    assert parse_kill(text) == kill


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("shard/-1@0.5", "ROLE/INDEX@FRACTION"),
        ("shard/1", "ROLE/INDEX@FRACTION"),
        ("shard/1@1", "below 1"),
        ("shard/1@0.5:BOOM", "unknown signal BOOM"),
        ("", "shard/1@0.5"),
    ],
)
def test_parse_kill_raises_kill_error(text: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_kill(text)


def test_check_targets_raises_for_missing_members() -> None:
    check_targets((parse_kill("shard/1@0.5"), parse_kill("trainer/0@0.5")), trainers=1, shards=2)
    with pytest.raises(OptionError, match=r"no shard/2.*2 shards"):
        check_targets((parse_kill("shard/2@0.5"),), trainers=3, shards=2)
    with pytest.raises(OptionError, match=r"no trainer/1.*1 trainers"):
        check_targets((parse_kill("trainer/1@0.5"),), trainers=1, shards=2)


def test_kill_is_due_once() -> None:
    early, late = parse_kill("shard/0@0.25"), parse_kill("shard/1@0.5")
    left: tuple[Kill, ...] = (late, early)
    assert due(left, 0, 0) == ((), left), "the total is not known yet"
    fired = []
    for samples in (0, 24, 25, 26, 60, 100):
        now, left = due(left, samples, 100)
        fired.append(now)
    assert fired == [(), (), (early,), (), (late,), ()]
    assert left == ()


def test_kills_of_one_member_are_due_one_after_the_other() -> None:
    first, second, other = (parse_kill(text) for text in ("shard/0@0.25", "shard/0@0.5:POD", "shard/1@0.5"))
    now, left = due((first, second, other), 60, 100)
    assert (now, left) == ((first, other), (second,))
    assert due(left, 60, 100) == ((second,), ())
