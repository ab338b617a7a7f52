"""The chart as helm renders it, and its values by its schema and its defaults."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from support.apiserver import binary

CHART = Path(__file__).parents[2] / "charts" / "cprjob"
Object = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Return helm's output. Skips the test where there is none, or fails it where binaries are required."""
    return subprocess.run([binary("helm"), *arguments], capture_output=True, text=True, check=False)


def promtool(*arguments: str | Path) -> None:
    """Fails the test if promtool finds something. Skips it, or fails it as well, where there is none."""
    command = [binary("promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def settings(values: tuple[str, ...]) -> list[str]:
    return [part for value in values for part in ("--set", value)]


@cache
def render(*values: str) -> list[Object]:
    """The chart's objects under --set values; callers must not change them."""
    done = helm("template", "cprjob", str(CHART), "--namespace", "operators", *settings(values))
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]


def notes(*values: str) -> str:
    """Return helm's notes after an installation."""
    done = helm("install", "cprjob", str(CHART), "--namespace", "operators", "--dry-run=client", *settings(values))
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\nNOTES:\n")[2]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def documented(schema: dict[str, Any] | None = None, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each value with its schema: a schema without a description is a group of values."""
    schema = schema or json.loads((CHART / "values.schema.json").read_text("utf-8"))
    for name, each in schema["properties"].items():
        if "description" in each:
            yield path + name, each
        elif path + name != "global":  # of any chart: helm hands it down from a parent
            yield from documented(each, f"{path}{name}.")


def default(path: str) -> Any:
    """The default of a value. Raises KeyError if values.yaml has none."""
    value: Any = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    for name in path.split("."):
        value = value[name]
    return value


def table() -> list[str]:
    """The lines that the chart's README has of the values, in the order of the schema."""
    return [
        f"| `{path}` | {_type(schema)} | `{json.dumps(default(path))}` | {schema['description']} |"
        for path, schema in documented()
    ]


def _type(schema: dict[str, Any]) -> str:
    reference = schema.get("$ref", "").removeprefix("#/definitions/")
    return {"strings": "object", "name": "string", "interval": "string"}.get(reference) or schema.get("type", "string")
