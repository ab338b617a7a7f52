from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from cpr_operator.api.cprjob_spec import IssuerRef
from cpr_operator.cluster.watch_cache import WatchCache
from cpr_operator.configuration import Configuration, ConfigurationError
from cpr_operator.desired.job_objects import IngressSources
from cpr_operator.desired.template import Restriction
from cpr_operator.handlers import make_registry, read_status
from cpr_operator.metrics import Metrics
from cpr_operator.queue import ReconcileQueue
from cpr_operator.watches import make_settings

PEER = {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}
READ: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({}, {"namespaces": (), "http_port": 8080, "lease": ("default", "cprjob"), "kueue": False}),
    ({"NAMESPACES": " , "}, {"namespaces": ()}),
    ({"NAMESPACES": "a, b"}, {"namespaces": ("a", "b")}),
    ({"HTTP_PORT": "9000"}, {"http_port": 9000}),
    ({"LEASE": "cprjob-system/my-cprjob"}, {"lease": ("cprjob-system", "my-cprjob")}),
    ({"KUEUE": "true"}, {"kueue": True}),
    ({}, {"encryption": "None"}),
    ({"ENCRYPTION": "TLS"}, {"encryption": "TLS"}),
    ({}, {"issuer": None}),
    ({"ISSUER": "Issuer/ca"}, {"issuer": IssuerRef(name="ca")}),
    ({"ISSUER": "StepIssuer.step.sm/ca"}, {"issuer": IssuerRef(name="ca", kind="StepIssuer", group="step.sm")}),
    ({"SERVICE_ACCOUNTS": "a, b"}, {"restriction": Restriction(frozenset({"a", "b"}))}),
    ({"RESTRICT_TEMPLATES": "false"}, {"restriction": None}),
    ({"NAMESPACE": "operators", "REPORT_PEERS": json.dumps([PEER])}, {"sources": IngressSources("operators", (PEER,))}),
]
WRONG = {
    "HTTP_PORT": ("x", "-1", "65536", "80.5"),
    "LEASE": ("cprjob", "a/b/c", "/name", "space/", "Upper/case"),
    "KUEUE": ("yes",),
    "ENCRYPTION": ("mTLS", "true"),
    "ISSUER": ("ca", "/ca", "Issuer/", "issuer/ca"),
    "RESTRICT_TEMPLATES": ("no",),
    "REPORT_PEERS": ("{", "{}", '["x"]'),
}


@pytest.mark.parametrize(("given", "expected"), READ)
def test_the_environment_is_read(given: dict[str, str], expected: dict[str, Any]) -> None:
    found = Configuration.read({f"CPR_OPERATOR_{name}": value for name, value in given.items()})
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"CPR_OPERATOR_{name}"):
        Configuration.read({f"CPR_OPERATOR_{name}": value})


def test_every_wait_of_kopf_is_bounded_and_it_posts_nothing() -> None:
    settings = make_settings()
    watching, networking = settings.watching, settings.networking
    bounds = (watching.server_timeout, watching.client_timeout, watching.connect_timeout)
    assert all(bounds)
    assert networking.request_timeout
    assert networking.connect_timeout
    assert settings.peering.standalone
    assert not settings.posting.enabled


async def test_only_raw_events_are_handled() -> None:
    async def run_pass(namespace: str, name: str) -> None: ...

    registry = make_registry(
        ReconcileQueue(run_pass, random.Random()),
        Metrics(),
        WatchCache(time.monotonic),
        lambda *_: None,
        lambda *_: None,
    )
    assert len(registry._watching.get_all_handlers()) == 2
    for others in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert others.get_all_handlers() == []


def test_a_status_of_another_shape_is_left_to_the_controller() -> None:
    status = read_status({"phase": "Running"})
    assert status is not None
    assert status.phase == "Running"
    assert read_status({"phase": "Dancing"}) is None
