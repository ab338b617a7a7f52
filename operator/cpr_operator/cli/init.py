"""`cprjob init`: inspects data by the trainer image's code, and writes a manifest that trains it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cpr_contract.requests import DataStats, Inspection, InspectionRequest
from cpr_operator.api.rules.job_rules import MAX_NAME
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.command_options import check_file
from cpr_operator.cli.proposal.columns import separator_of
from cpr_operator.cli.proposal.commented import write
from cpr_operator.cli.proposal.manifest import Proposal, Target, propose
from cpr_operator.cli.trainer_process import answer, run_role

_WILDCARDS = "*?["
_ENDINGS = re.compile(r"(\.[a-z]{1,8}[0-9]?){1,3}$")


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of the command. `data` is a path, a glob or a URI; `rows` are those to read, None: all."""

    data: str
    label: str | None
    out: Path | None
    rows: int | None
    force: bool


def init(options: InitOptions, console: Console, environment: Mapping[str, str]) -> None:
    """Inspect the data and write its manifest. Raises OptionError, DocumentError, TrialError, MissingPackageError."""
    uri = absolute(options.data)
    name = job_name_of(uri)
    out = options.out or Path(f"{name}.yaml")
    check_file("--out", out)
    if out.exists() and not options.force:
        raise OptionError(f"{out} exists: name another file by --out, or replace it by --force")
    run = partial(run_role, environment=environment)
    request = InspectionRequest(uri, options.rows)
    data = answer(Inspection, run, "inspect", None, request).data
    separator, bags = separator_of(data) or (None, ())
    if separator is not None:
        request = InspectionRequest(uri, options.rows, bags, separator)
        data = answer(Inspection, run, "inspect", None, request).data
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    target = Target(name, uri, f"cprjob-trainer:{version('cprjob')}", memory)
    proposal = propose(data, target, options.label, separator)
    out.write_text(write(proposal.manifest), "utf-8")
    show(proposal, data, out, name, console)


def show(proposal: Proposal, data: DataStats, out: Path, name: str, console: Console) -> None:
    """Print the choices in the manifest, warnings about the data, and the next commands."""
    read = "" if data.read is None else f", {data.read:,} of them read"
    lines = [
        f"{out}: {data.format}, {data.rows:,} rows{read}",
        f"  label {proposal.label.column}: {proposal.label.reason}",
        f"  {len(proposal.numbers)} numbers, {len(proposal.ids)} columns of ids",
        *(f"  {use.column.name} is left out: {use.reason}" for use in proposal.unused),
        *data.advice,
        f"To train:  cprjob run {out} --workdir cprjob-runs/{name}",
        f"To report: cprjob report --workdir cprjob-runs/{name}",
    ]
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)


def absolute(data: str) -> str:
    """Return data on this machine as an absolute path, which ends in / for a folder; a URI stays as it is."""
    if "://" in data:
        return data
    # As text, because a Path would drop the slash that marks a folder.
    path = data if data.startswith("/") else f"{Path.cwd()}/{data}"
    is_folder = not any(sign in path for sign in _WILDCARDS) and Path(path).is_dir()
    return f"{path.rstrip('/')}/" if is_folder else path


def job_name_of(uri: str) -> str:
    """Return a valid name of a job by the last part of a path without wildcards."""
    parts = [part for part in uri.split("/") if part and not any(sign in part for sign in _WILDCARDS)]
    plain = re.sub(r"[^a-z0-9]+", "-", _ENDINGS.sub("", parts[-1].lower() if parts else "")).strip("-")
    if not plain[:1].isalpha():
        plain = f"job-{plain}"
    return plain[:MAX_NAME].strip("-")
