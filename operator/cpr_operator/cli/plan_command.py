"""`cprjob validate` and `cprjob plan`: invalid fields of manifests, and the operator's plan of a job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cpr_contract.choices import ReplayPolicy
from cpr_operator import policy
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.data_spec import Follow
from cpr_operator.api.frozen_settings import replay_in_force, sparse_updates, worker_count
from cpr_operator.api.sizes import (
    ShardMemory,
    dense_size,
    publisher_size,
    shard_memory,
    step_traffic,
    steps_until_full,
)
from cpr_operator.api.validate import parse_document, parse_spec, parse_status, validate
from cpr_operator.cli.command_errors import DocumentError
from cpr_operator.cli.console import plain_table, show_invalid
from cpr_operator.cli.document import jobs_of, read_documents
from cpr_operator.desired.advice import warnings
from cpr_operator.policy import alternatives
from cpr_operator.policy.alternatives import WhatIf, halved_and_doubled, mode_changes
from cpr_operator.policy.law import Mode
from cpr_operator.policy.plan import duration
from cpr_operator.reconcile.save_plan import plan_inputs

MODES: tuple[Mode, ...] = ("Partial", "Full")
#: The plans of CPR's own equations, which do not guarantee that the budget holds.
CPR: Mapping[Mode, Callable[[policy.Inputs], alternatives.OpenLoop]] = {
    "Partial": alternatives.partial,
    "Full": alternatives.full,
}
_ENDLESS = "it waits for files until it is suspended or deleted, and its duration is not known"
#: The name of each parameter, and the format of its values.
_PARAMETERS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "limit": ("accuracy budget", lambda value: f"{value:.3g} of all samples"),
    "mtbf_s": ("mean time between failures", duration),
    "lost_per_failure": ("shards lost per failure", lambda value: f"{value:.3g}"),
    "save_stall_s": ("cost of a save", duration),
}


def validate_files(paths: tuple[Path, ...], console: Console) -> bool:
    """Print every invalid field of every file. Returns whether all files are valid."""
    results = [_validate_file(path, console) for path in paths]  # a list, so that every file is checked
    return all(results)


def show_warnings(spec: CPRJobSpec, console: Console) -> None:
    """Print each part of a valid spec that has no effect, or another one than expected."""
    for each in warnings(spec):
        console.print(f"  [yellow]warning[/yellow] [bold]{escape(each.field)}[/bold]: {escape(each.message)}")
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
    others = len(documents) - len(jobs)
    unchecked = f", {others} other object{'s' if others > 1 else ''} not checked" if others else ""
    console.print(f"[green]{escape(str(path))}[/green]: valid{unchecked}")
    for job in jobs:
        spec = parse_spec(job["spec"])
        if spec.data.follow is not None:
            console.print(f"  {_ending(spec.data.follow)}", markup=False, highlight=False, soft_wrap=True)
        show_warnings(spec, console)
    return True


def plan(job: Any, *, as_json: bool, out: Console) -> None:
    """Print the plan of a CPRJob object. With its status, plan the rest of the job.

    Raises InvalidSpecError, InvalidStatusError.
    """
    spec, status = parse_document(job), parse_status(job.get("status") or {})
    inputs = plan_inputs(spec, status)
    inputs = replace(inputs, shards=inputs.shards or spec.shards.replicas)
    chosen = policy.plan(inputs)
    replay = replay_in_force(spec, status)
    workers, updates = worker_count(spec, status.runtime), sparse_updates(spec, status.runtime)
    memory, dense = shard_memory(spec, replay, updates.mode), dense_size(spec.model)
    if as_json:
        until_full = steps_until_full(spec, replay) if replay.enabled else None
        document = _document(chosen, inputs) | {
            "replay": asdict(replay),
            "workers": workers.to_dict(),
            "sparse_updates": updates.to_dict(),
            "shard_memory": asdict(memory),
            "publisher": None if spec.publish is None else asdict(publisher_size(spec.model)),
            "dense_network": None if dense is None else asdict(dense),
            "trainer_step": asdict(step_traffic(spec)) | {"steps_until_full": until_full},
            "warnings": [asdict(each) for each in warnings(spec)],
        }
        out.print_json(json.dumps(document))
        return
    out.print(chosen.reason, markup=False, highlight=False, soft_wrap=True)
    if spec.data.follow is not None:
        out.print(_ending(spec.data.follow), markup=False, highlight=False, soft_wrap=True)
    modes = plain_table("mode", "save interval", "overhead", "expected loss (PLS)", "")
    for mode in MODES:
        modes.add_row(mode, *_row(_with_mode(inputs, mode)), "chosen" if mode == chosen.mode else "")
    for mode, by_cpr in CPR.items():
        modes.add_row(f"{mode}, open loop", *_row(by_cpr(inputs)), "by CPR's equations")
    time = chosen.expected_time
    parts = f"{time.saving:.2%} saving, {time.recovering:.2%} recovering, {time.repeated:.2%} repeated training"
    out.print(f"Expected goodput from the first step to the last: {time.productive:.2%}; {parts}.", highlight=False)
    out.print("", modes, "", _changes(chosen, inputs), "", sep="\n", highlight=False)
    break_even = alternatives.break_even(inputs)
    replays = f"Replay is {'on' if replay.enabled else 'off'}: {replay.reason}."
    threads = f"A trainer has {workers.count} worker{'' if workers.count == 1 else 's'}: {workers.reason}."
    if workers.count is None:
        threads = f"The number of workers of a trainer is not known yet: {workers.reason}."
    often = "once a step" if updates.mode == "PerStep" else "once for each push"
    rows = f"Shards update rows {often}: {updates.reason}."
    for line in (replays, threads, rows, *_memory(spec, replay, memory)):
        out.print(line, markup=False, highlight=False)
    show_warnings(spec, out)
    out.print(f"By CPR's equations, partial recovery pays off from a budget of {break_even:.2g}.", highlight=False)


def _ending(follow: Follow) -> str:
    """Return the end of a job that follows its data, which has no total before."""
    ends = [] if follow.until is None else [f"at {follow.until}"]
    ends += ["when everything is trained and a look finds nothing new"] if follow.idle == "Finish" else []
    known = "Its number of samples, and so its duration, are not known before"
    return f"The data ends {' or '.join(ends)}. {known}." if ends else f"The job has no end: {_ENDLESS}."


def _memory(spec: CPRJobSpec, replay: ReplayPolicy, memory: ShardMemory) -> Iterator[str]:
    """Yield the memory that the pods of each role need, by the sizes in the spec."""
    step = step_traffic(spec)
    redundancy = f", and redundancy takes {_mib(memory.redundancy_bytes)} more" if memory.redundancy_bytes else ""
    has_entries = any(table.ids == "Dynamic" for table in spec.model.tables)
    entries = ", with the entries of dynamic tables" if has_entries else ""
    held = f", and pushes of open steps up to {_mib(memory.held_bytes)}" if memory.held_bytes else ""
    yield (
        f"A shard holds {_mib(memory.rows_bytes)} of rows and their optimizer state{entries}{redundancy}{held};"
        f" with saves under way it needs {_mib(memory.needed_bytes)}."
    )
    some = ", ".join(step.bags[:3]) + (", ..." if step.bags[3:] else "")
    bags = f", with one id in each bag of {some}" if step.bags else ""
    until_full = f"; {steps_until_full(spec, replay):,} steps fill its memory for replay" if replay.enabled else ""
    yield f"A trainer pushes up to {step.rows:,} rows in a step, {_mib(step.pushed_bytes)}{bags}{until_full}."
    if (dense := dense_size(spec.model)) is not None:
        size = f"{_mib(dense.trainer_bytes)} on a trainer, with gradients and optimizer state"
        yield f"The dense network has {dense.parameters:,} parameters: {size}."
    if spec.publish is not None:
        publisher = publisher_size(spec.model)
        yield (
            f"A publisher, one more pod, has the resources of a shard's container, {_mib(publisher.digests_bytes)} of"
            f" memory for digests of rows, and {_mib(publisher.disk_bytes)} of disk: a whole model of"
            f" {_mib(publisher.model_bytes)} is written twice."
        )


def _document(chosen: policy.Plan, inputs: policy.Inputs) -> dict[str, Any]:
    return {
        **_plan(chosen),
        "reason": chosen.reason,
        "guesses": list(inputs.guesses),
        "inputs": chosen.status_inputs(),
        "modes": {mode: _plan(_with_mode(inputs, mode)) for mode in MODES},
        "cpr": {mode: asdict(by_cpr(inputs)) for mode, by_cpr in CPR.items()},
        "break_even_pls": alternatives.break_even(inputs),
        "turns": [_what_if(each) for each in mode_changes(inputs)],
        "what_if": [_what_if(each) for each in halved_and_doubled(inputs)],
    }


def _plan(plan: policy.Plan) -> dict[str, Any]:
    return {
        "mode": plan.mode,
        "interval_s": plan.interval_s,
        "stored_bits": plan.stored_bits,
        "expected_pls": plan.expected_pls,
        "expected_overhead": plan.expected_overhead,
        "expected_goodput": asdict(plan.expected_time),
    }


def _what_if(each: WhatIf) -> dict[str, Any]:
    return {"figure": each.parameter, "value": each.value, **_plan(each.plan)}


def _with_mode(inputs: policy.Inputs, mode: Mode) -> policy.Plan:
    return policy.plan(replace(inputs, mode=mode))


def _changes(chosen: policy.Plan, inputs: policy.Inputs) -> Table:
    table = plain_table("If this changed", "to", "mode", "save interval", "overhead", "expected loss (PLS)")
    for each in (*mode_changes(inputs), *halved_and_doubled(inputs)):
        name, to_text = _PARAMETERS[each.parameter]
        mode = each.plan.mode if each.plan.mode == chosen.mode else f"[bold]{each.plan.mode}[/bold]"
        table.add_row(name, to_text(each.value), mode, *_row(each.plan))
    return table


def _row(plan: policy.Plan | alternatives.OpenLoop) -> tuple[str, str, str]:
    return duration(plan.interval_s), f"{plan.expected_overhead:.2%}", f"{plan.expected_pls:.2g}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
