"""YAML as kubectl reads it.

The values are those that sigs.k8s.io/yaml 1.6.0 gave (JSON's own reader for JSON). It refuses most of what is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator.api.yaml_text import YamlTextError, read_documents, read_value, write_documents

SCALARS: dict[str, Any] = {
    **dict.fromkeys(("1e-3", "1E-3", ".1e-2", "0.001", "1_0e-4"), 0.001),
    **dict.fromkeys(("1e3", "1E+3", "1000", "1_000", "1000.", "0x3e8", "0b1111101000", "0o1750", "01750"), 1000),
    **dict.fromkeys(("-.5", "-5e-1"), -0.5),
    **dict.fromkeys(("y", "Y", "yes", "on", "True", "!!bool yes"), True),
    **dict.fromkeys(("n", "No", "off", "Off", "FALSE"), False),
    **dict.fromkeys(("", "~", "Null"), None),
    **{
        text: text
        for text in ("1:30", "12:30:45.5", "2026-01-01", "=", "<<", "1e400", "0x", "0o8", "_1", "tRue", "1,5")
    },
    "08": 8,
    "99999999999999999999": 10**20,
    "18446744073709551615": 2**64 - 1,
    "!!str 1": "1",
    "!!int '3'": 3,
}
DOCUMENTS: dict[str, Any] = {
    "1: a\ntrue: b\n1.5: c\n1e3: d": {"1": "a", "true": "b", "1.5": "c", "1000": "d"},
    "a: &x {b: [1]}\nc: {<<: *x, d: 2}": {"a": {"b": [1]}, "c": {"b": [1], "d": 2}},
    "a: &a 1\nb: &a 2\nc: *a": {"a": 1, "b": 2, "c": 2},
    '{\n\t"a": "\\ud83d\\ude00"\n}': {"a": "\U0001f600"},
    "\ufeffa: b\r\nc: d": {"a": "b", "c": "d"},
}
REFUSED = {
    "a: 1\nb: 2\na: 3": "line 3, column 1: the key a is already there",
    "- {rows: 1, rows: 1}": "line 1, column 13: the key rows is already there",
    "1e-3: a\n0.001: b": "the key 0.001 is already there",
    "a: &a [*a]": "line 1, column 8: the value behind &a contains itself",
    "a: &a {b: {c: *a}}": "contains itself",
    "[" * 3000: "nested in more than 100 levels",
    "- " * 3000: "nested in more than 100 levels",
    "{" * 3000: "nested in more than 100 levels",
    '"\\ud800"': "half a character",
    "a: .inf": "not a number that JSON has",
    "null: a": "a key must be text",
    "? [a]\n: b": "a key must be text",
    "a: [": "line 1, column 5: expected the node content",
    "a: *b": "undefined alias 'b'",
    "a: b\0": "U+0000",
    "a: \ud800": "U+D800",
    "a:\n\t- 1": "line 2, column 1",
    "a: !!python/name:os.system": "remove it",
    "a: !!int x": "is no !!int",
}


@pytest.mark.parametrize(("text", "value"), (SCALARS | DOCUMENTS).items())
def test_yaml_is_parsed_as_by_kubectl(text: str, value: Any) -> None:
    found = read_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("text", "words"), REFUSED.items(), ids=map(repr, range(len(REFUSED))))
def test_yaml_that_kubectl_refuses_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(YamlTextError) as refused:
        read_documents(text)
    assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_yaml_aliases_that_grow_without_bound_are_refused() -> None:
    lines = ["a: &a0 [" + "1," * 10 + "]", *(f"a{i}: &a{i} [{f'*a{i - 1},' * 10}]" for i in range(1, 9))]
    with pytest.raises(YamlTextError, match="more than 1000000 values"):
        read_documents("\n".join(lines))


def test_yaml_alias_copies_its_value() -> None:
    found = read_value("a: &a {b: 1}\nc: *a")
    found["a"]["b"] = 2
    assert found["c"] == {"b": 1}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_yaml_bytes_are_utf_8_or_utf_16_with_a_byte_order_mark(encoding: str) -> None:
    assert read_documents("a: é\n---\n---\nb: 1".encode(encoding)) == ({"a": "é"}, {"b": 1})
    with pytest.raises(YamlTextError, match="byte 1: the text is not UTF-8"):
        read_documents(b"\x80")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(-1e9, 1e9) | st.sampled_from([*SCALARS])
    | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SCALARS]), inner, max_size=3),
)  # fmt: skip


@given(JSON)
def test_written_yaml_round_trips_in_kubectl_and_other_parsers(value: Any) -> None:
    text = write_documents({"value": value})
    assert read_value(text) == {"value": value}
    assert yaml.safe_load(text) == {"value": value}
