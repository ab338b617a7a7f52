"""`cprjob validate`: every wrong field of every file at once."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cpr_operator.api.validate import Invalid, validate
from cpr_operator.cli.document import DocumentError, read_documents


def validate_files(paths: tuple[Path, ...], console: Console) -> bool:
    """Say of each file whether it is valid, and what is wrong with it; returns whether all are."""
    results = [_validate_file(path, console) for path in paths]  # all of them, also after a wrong one
    return all(results)


def show_invalid(where: str, invalid: tuple[Invalid, ...], console: Console) -> None:
    """One line for each wrong field: its path, what is wrong, what to do."""
    console.print(f"[red]{escape(where)}[/red]: {len(invalid)} wrong field{'s' if len(invalid) > 1 else ''}")
    for each in invalid:
        console.print(f"  [bold]{escape(each.field or '(document)')}[/bold]: {escape(each.message)}")
        console.print(f"      {escape(each.remedy)}", style="dim")


def _validate_file(path: Path, console: Console) -> bool:
    try:
        documents = read_documents(path)
    except DocumentError as error:
        console.print(f"[red]{escape(str(error))}[/red]")
        return False
    invalid = tuple(each for document in documents for each in validate(document))
    if not documents:
        invalid = validate(None)
    if invalid:
        show_invalid(str(path), invalid, console)
        return False
    console.print(f"[green]{escape(str(path))}[/green]: valid")
    return True
