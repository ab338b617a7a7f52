"""Which proxy leads to the API server: the environment's, as kubectl takes it."""

from __future__ import annotations

import pytest

from cpr_operator.cluster.api_server import environment_proxy

SERVER = "https://10.96.0.1:443"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_without_one_the_server_is_reached_directly() -> None:
    assert environment_proxy(SERVER) is None


def test_the_one_for_the_url_s_scheme_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://plain.example:3128")
    assert environment_proxy(SERVER) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert environment_proxy(SERVER) == "http://proxy.example:3128"


@pytest.mark.parametrize("excepted", ["10.96.0.1", "10.96.0.1:443", "*"])
def test_a_server_that_is_excepted_is_reached_directly(monkeypatch: pytest.MonkeyPatch, excepted: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    assert environment_proxy(SERVER) is None
