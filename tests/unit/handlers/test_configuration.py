from __future__ import annotations

import json
import random
import time

import pytest

from cpr_operator.cluster.watched import Watched
from cpr_operator.configuration import Configuration, ConfigurationError
from cpr_operator.desired.guards import Peers
from cpr_operator.desired.template import Restriction
from cpr_operator.handlers import make_registry, read_status
from cpr_operator.metrics import Metrics
from cpr_operator.watches import make_settings
from cpr_operator.worker import Workers


def test_no_namespaces_mean_all_of_them() -> None:
    assert Configuration.read({}) == Configuration((), 8080, ("default", "cprjob"))
    assert Configuration.read({"CPR_OPERATOR_NAMESPACES": " , "}) == Configuration((), 8080, ("default", "cprjob"))


def test_the_environment_names_namespaces_port_and_lease() -> None:
    environ = {
        "CPR_OPERATOR_NAMESPACES": "a, b",
        "CPR_OPERATOR_HTTP_PORT": "9000",
        "CPR_OPERATOR_LEASE": "cprjob-system/my-cprjob",
    }
    assert Configuration.read(environ) == Configuration(("a", "b"), 9000, ("cprjob-system", "my-cprjob"))


def test_queues_of_kueue_are_used_on_request() -> None:
    assert not Configuration.read({}).kueue
    assert Configuration.read({"CPR_OPERATOR_KUEUE": "true"}).kueue
    with pytest.raises(ConfigurationError, match="CPR_OPERATOR_KUEUE"):
        Configuration.read({"CPR_OPERATOR_KUEUE": "yes"})


@pytest.mark.parametrize("port", ["x", "-1", "65536", "80.5"])
def test_a_wrong_port_is_named(port: str) -> None:
    with pytest.raises(ConfigurationError, match="CPR_OPERATOR_HTTP_PORT"):
        Configuration.read({"CPR_OPERATOR_HTTP_PORT": port})


@pytest.mark.parametrize("lease", ["cprjob", "a/b/c", "/name", "space/", "Upper/case"])
def test_a_wrong_lease_is_named(lease: str) -> None:
    with pytest.raises(ConfigurationError, match="CPR_OPERATOR_LEASE"):
        Configuration.read({"CPR_OPERATOR_LEASE": lease})


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
        Workers(run_pass, random.Random()), Metrics(), Watched(time.monotonic), lambda *_: None, lambda *_: None
    )
    assert len(registry._watching.get_all_handlers()) == 2
    for others in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert others.get_all_handlers() == []


def test_a_status_of_another_shape_is_left_to_the_controller() -> None:
    status = read_status({"phase": "Running"})
    assert status is not None
    assert status.phase == "Running"
    assert read_status({"phase": "Dancing"}) is None


def test_templates_are_restricted_unless_the_environment_says_otherwise() -> None:
    accounts = {"CPR_OPERATOR_SERVICE_ACCOUNTS": "a, b"}
    assert Configuration.read(accounts).restriction == Restriction(frozenset({"a", "b"}))
    assert Configuration.read({"CPR_OPERATOR_RESTRICT_TEMPLATES": "false"}).restriction is None
    with pytest.raises(ConfigurationError, match="CPR_OPERATOR_RESTRICT_TEMPLATES is 'no'"):
        Configuration.read({"CPR_OPERATOR_RESTRICT_TEMPLATES": "no"})


def test_the_environment_names_who_reaches_the_pods() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}
    environ = {"CPR_OPERATOR_NAMESPACE": "operators", "CPR_OPERATOR_REPORT_PEERS": json.dumps([peer])}
    assert Configuration.read(environ).peers == Peers("operators", (peer,))
    for text in ("{", "{}", '["x"]'):
        with pytest.raises(ConfigurationError, match="CPR_OPERATOR_REPORT_PEERS"):
            Configuration.read({"CPR_OPERATOR_REPORT_PEERS": text})
