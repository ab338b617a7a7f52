"""`cprjob validate`: every invalid field of every file at once."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cpr_operator.api.validate import Invalid, validate
from cpr_operator.cli.document import DocumentError, jobs_of, read_documents


def validate_files(paths: tuple[Path, ...], console: Console) -> bool:
    """Print the invalid fields of each file. Returns whether all files are valid."""
    results = [_validate_file(path, console) for path in paths]  # a list, so that none is skipped
    return all(results)


def show_invalid(where: str, invalid: tuple[Invalid, ...], console: Console) -> None:
    """Print each invalid field: its path, what is wrong, and the remedy."""
    console.print(f"[red]{escape(where)}[/red]: {len(invalid)} invalid field{'s' if len(invalid) > 1 else ''}")
    for each in invalid:
        console.print(f"  [bold]{escape(each.field or '(document)')}[/bold]: {escape(each.message)}")
        console.print(f"      {escape(each.remedy)}", style="dim")


def _validate_file(path: Path, console: Console) -> bool:
    try:
        documents = read_documents(path)
    except DocumentError as error:
        console.print(f"[red]{escape(str(error))}[/red]")
        return False
    jobs = jobs_of(documents)
    if documents and not jobs:
        console.print(f"[red]{escape(str(path))}[/red]: none of its {len(documents)} documents is a CPRJob")
        return False
    invalid = tuple(each for job in jobs or (None,) for each in validate(job))
    if invalid:
        show_invalid(str(path), invalid, console)
        return False
    console.print(f"[green]{escape(str(path))}[/green]: valid{_others(len(documents) - len(jobs))}")
    return True


def _others(count: int) -> str:
    return f", {count} other object{'s' if count > 1 else ''} not checked" if count else ""
