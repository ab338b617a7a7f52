"""Callers that have not proved anything yet: how many are served at once, and who makes room."""

from __future__ import annotations

import threading

from cpr_trainer.runtime import Gate


def test_a_caller_that_is_cut_off_holds_its_place_until_its_thread_leaves() -> None:
    cut, entered = threading.Event(), threading.Event()
    gate = Gate(1, lambda _: cut.set())
    gate.enter("first")

    def enter() -> None:
        gate.enter("second")
        entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    assert cut.wait()
    assert not entered.wait(0.2)
    gate.leave("first")
    assert entered.wait()
    waiting.join()


def test_a_caller_that_does_not_go_does_not_keep_others_from_making_room() -> None:
    cut: list[object] = []

    def cut_off(caller: str) -> None:
        cut.append(caller)
        if caller == "good":
            gate.leave(caller)

    gate = Gate(2, cut_off)
    gate.enter("stuck")
    gate.enter("good")
    gate.enter("third")
    assert cut == ["stuck", "good"]


def test_late_callers_are_cut_off_and_others_are_not() -> None:
    cut: list[object] = []
    gate = Gate(2, cut.append)
    gate.enter("late")
    gate.expel(3600)
    assert cut == []
    gate.expel(-1)
    assert cut == ["late"]
