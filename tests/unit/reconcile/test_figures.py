from cpr_operator.api.status import Anchor, Counters, Fork, Status
from cpr_operator.reconcile.figures import restorable


def anchor(generation: int, samples: int) -> Anchor:
    return Anchor(key=f"{generation}-{samples}", digest="0", generation=generation, step=0, samples=samples)


def test_what_a_rollback_left_behind_is_never_restored_again() -> None:
    status = Status(
        counters=Counters(generation=2), forks=(Fork(generation=1), Fork(generation=2, anchor=anchor(1, 800)))
    )
    given = (anchor(1, 400), anchor(1, 800), anchor(1, 1200), anchor(2, 1100))
    assert restorable(status, given) == (anchor(1, 400), anchor(1, 800), anchor(2, 1100))


def test_after_a_rollback_to_step_0_only_new_anchors_count() -> None:
    status = Status(counters=Counters(generation=2), forks=(Fork(generation=1), Fork(generation=2)))
    assert restorable(status, (anchor(1, 400), anchor(2, 100))) == (anchor(2, 100),)
