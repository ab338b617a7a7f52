"""The pages that are made from the code: the resource from its definition, the commands from their help.

A comment in a page, `<!-- made here: resource -->`, is replaced when Sphinx reads the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from typer.main import get_command

from cpr_operator.cli.app import app as cprjob

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CRD = Path(__file__).parents[2] / "crds" / "cprjobs.cprjob.io.yaml"
PLACEHOLDER = re.compile(r"^<!-- made here: (\w+) -->$", re.MULTILINE)
#: Characters with a meaning in Markdown. Backticks stay: descriptions use them as Markdown does.
SPECIAL = re.compile(r"([|<>*_\[\]\\])(?=[^`]*(?:`[^`]*`[^`]*)*$)")
Schema = Mapping[str, Any]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True}


def filled(text: str) -> str:
    """Return a page's Markdown with its generated parts. Raises KeyError for an unknown part."""
    makers: Mapping[str, Callable[[], Iterator[str]]] = {"resource": resource, "commands": commands}
    return PLACEHOLDER.sub(lambda found: "\n".join(makers[found[1]]()), text)


def resource() -> Iterator[str]:
    """Yield the Markdown lines of all fields of a CPRJob: a section for each object, with its rules."""
    (version,) = yaml.safe_load(CRD.read_text("utf-8"))["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        yield from _object(part, root["properties"][part], 2)
    yield from ("## The object as a whole", "")
    yield from _rules(root)


def commands() -> Iterator[str]:
    """Yield the Markdown lines of all commands: a section for each, with its usage, arguments and options."""
    root: Any = get_command(cprjob)
    yield from _command(root, "cprjob", None)


def _fill(_: Sphinx, __: str, source: list[str]) -> None:
    source[0] = filled(source[0])


def _object(path: str, schema: Schema, rank: int) -> Iterator[str]:
    yield from (f"{'#' * rank} {path}", "", _prose(schema.get("description", "")), "")
    yield from ("| field | values | default | |", "|---|---|---|---|")
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        default = "required" if name in required else _default(field)
        yield f"| `{name}` | {_values(field)} | {default} | {_prose(field.get('description', ''))} |"
    yield ""
    yield from _rules(schema, *(field for field in schema["properties"].values() if "properties" not in field))
    for name, field in schema["properties"].items():
        inner, suffix = (field["items"], "[]") if "items" in field else (field, "")
        if "properties" in inner:
            yield from _object(f"{path}.{name}{suffix}", inner, min(rank + 1, 3))


def _rules(*schemas: Schema) -> Iterator[str]:
    rules = [rule["message"] for schema in schemas for rule in schema.get("x-kubernetes-validations", ())]
    if rules:
        yield from ("The API server refuses it with:", "", *(f"- {_prose(each)}" for each in rules), "")


def _values(field: Schema) -> str:
    """Return the values that a field may have."""
    if "items" in field:
        return f"list of {_values(field['items'])}{_count(field, 'Items')}"
    if isinstance(field.get("additionalProperties"), dict):
        return f"map to {_values(field['additionalProperties'])}"
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if "x-kubernetes-int-or-string" in field:
        return f"integer{_bounds(field)}, or `{field['pattern'].strip('^$')}`"
    return f"{field['type']}{_bounds(field)}{_count(field, 'Length')}"


def _bounds(field: Schema) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    words = [
        f"{'above' if field.get('exclusiveMinimum') else 'from'} {_number(least)}" if least is not None else "",
        f"{'below' if field.get('exclusiveMaximum') else 'to'} {_number(most)}" if most is not None else "",
    ]
    return "".join(f" {each}" for each in words if each)


def _count(field: Schema, of: str) -> str:
    most = field.get(f"max{of}")
    return "" if most is None else f", {most:,} at most" if of == "Items" else f", {most:,} characters at most"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _default(field: Schema) -> str:
    if "default" not in field:
        return ""
    value = field["default"]
    return "" if isinstance(value, dict | list) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _prose(text: str) -> str:
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _command(command: Any, name: str, above: Any) -> Iterator[str]:
    context = command.make_context(name.rpartition(" ")[2], [], parent=above, resilient_parsing=True)
    if above is not None:
        yield from (f"## {name}", "", _prose(command.help or ""), "")
    if hasattr(command, "commands"):
        for each in command.commands.values():
            yield from _command(each, f"{name} {each.name}", context)
        return
    yield from ("```text", command.get_usage(context).removeprefix("Usage: "), "```", "")
    records = [found for parameter in command.get_params(context) if (found := parameter.get_help_record(context))]
    yield from ("| argument or option | |", "|---|---|")
    yield from (f"| `{usage.replace('|', chr(92) + '|')}` | {_prose(about)} |" for usage, about in records)
    yield ""
