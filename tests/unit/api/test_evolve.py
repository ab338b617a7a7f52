"""`evolve` under mypy, which checks the fields of each model.

If mypy accepted one of these calls, it would report the `type: ignore` comment as unused.
"""

import pytest

from cpr_operator.api.status import Shard, Status, Trainer


def test_evolve_sets_only_fields_of_the_model() -> None:
    with pytest.raises(AttributeError, match="fase"):
        Status().evolve(fase="Failed")  # type: ignore[call-arg]
    member: Shard | Trainer = Trainer(index=0)
    with pytest.raises(AttributeError, match="may_restore"):
        member.evolve(may_restore=False)  # type: ignore[call-arg]


def test_evolve_returns_the_same_object_without_a_change() -> None:
    shard = Shard(index=0, saved_samples=5)
    assert shard.evolve(index=0, saved_samples=5) is shard
    assert shard.evolve(index=0, saved_samples=6) == Shard(index=0, saved_samples=6)
