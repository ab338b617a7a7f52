"""`evolve`: mypy knows the fields of each model.

If it accepted one of these calls, mypy would report the `type: ignore` beside it as unused.
"""

import pytest

from cpr_operator.api.status import Shard, Status, Trainer


def test_only_fields_of_the_model_can_be_set() -> None:
    with pytest.raises(AttributeError, match="fase"):
        Status().evolve(fase="Failed")  # type: ignore[call-arg]
    member: Shard | Trainer = Trainer(index=0)
    with pytest.raises(AttributeError, match="may_restore"):
        member.evolve(may_restore=False)  # type: ignore[call-arg]


def test_a_model_that_does_not_change_is_the_same_object() -> None:
    shard = Shard(index=0, saved_samples=5)
    assert shard.evolve(index=0, saved_samples=5) is shard
    assert shard.evolve(index=0, saved_samples=6) == Shard(index=0, saved_samples=6)
