"""Followers of a published chain: one copies each model, refuses what was not published, and serves whole models."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cprjob_serving import ChainError, Follower, SourceError, current
from cprjob_serving.chain import HINT
from support.published_chain import Case, StoreSource


def test_follower_keeps_the_model_that_it_named_before_and_no_unfinished_one(case: Case) -> None:
    case.job.train_and_save()
    case.publish()
    case.follower.update()
    named, folder = case.follower.model.folder.name, case.follower.model.folder.parent
    (folder / ".model-000000000002-killed").mkdir()
    for _ in range(3):
        case.job.train_and_save()
        case.publish()
    case.follower.update()
    assert case.follower.sequence == 4
    assert {path.name for path in folder.glob("*model-*")} == {named, case.follower.model.folder.name}


def test_hint_is_no_more_than_a_hint(case: Case) -> None:
    case.job.train_and_save()
    case.publish()
    old = case.target.objects[HINT]
    case.job.train_and_save()
    case.publish()
    case.target.objects[HINT] = old
    case.check()
    case.target.objects[HINT] = b"damaged"
    case.job.train_and_save()
    case.publish()
    case.check()


def test_follower_refuses_what_was_not_published(case: Case) -> None:
    case.job.train_and_save()
    case.publish()
    case.check()
    model = case.follower.model
    case.job.train_and_save()
    entry = case.publish()
    key = entry.files[0].key
    content = case.target.objects[key]
    case.target.objects[key] = b"x" + content[1:]
    with pytest.raises(ChainError, match=f"{key} is not what was published"):
        case.follower.update()
    assert case.follower.model is model
    case.target.objects[key] = content
    case.check()


def test_follower_continues_with_its_folder(case: Case) -> None:
    case.job.train_and_save()
    case.publish()
    case.check()
    with pytest.raises(SourceError, match="another process follows into"):
        Follower("memory:", case.folder / "followed", source=StoreSource(case.target))
    case.follower.stop()
    (case.folder / "followed" / "model-000000000009-x").mkdir()
    case.follower = Follower("memory:", case.folder / "followed", source=StoreSource(case.target))
    assert case.follower.sequence == 1
    assert current(case.folder / "followed") == case.follower.model.folder
    assert len(list((case.folder / "followed").glob("model-*"))) == 1
    case.job.train_and_save()
    case.publish()
    case.check()


def test_example_serves_the_newest_model_over_http(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    example = import_module("serve_http")
    monkeypatch.setattr(example, "cached", lambda _: lambda inputs: inputs["a"][:, 0])  # without its DLRM of one dim

    def ask(port: int, columns: dict[str, list[object]]) -> tuple[int, dict[str, Any]]:
        connection = HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/", json.dumps(columns))
        answer = connection.getresponse()
        found = answer.status, json.load(answer)
        connection.close()
        return found

    with example.server(case.follower, 0) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        assert ask(http.server_port, {}) == (503, {"error": "memory: has no published model yet"})
        for step in (2, 4):
            case.job.train_and_save()
            case.publish()
            case.follower.update()
            transform = case.follower.model.transform
            columns: dict[str, list[object]] = {each.column: [1.0] for each in transform.numeric}
            columns |= {each.column: ["7"] for each in transform.features}
            code, found = ask(http.server_port, columns)
            assert (code, found["step"], len(found["logits"])) == (200, step, 1), found
        assert ask(http.server_port, {})[0] == 400
        http.shutdown()
        thread.join()
