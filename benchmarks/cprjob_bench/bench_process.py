"""Processes of benches, by role. Arguments, exit codes and termination messages are as in `cpr_trainer.process`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from cpr_contract.codec import to_json
from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.reports import ExitCode
from cpr_trainer.process import loading_torch, run_role


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one role to its end and return the exit code.

    A member's command has `cpr_trainer` before its role, because the operator refuses other programs.
    """
    options = _parser().parse_args(arguments[1:] if arguments[:1] == ["cpr_trainer"] else arguments)
    if options.role in {ROLE_TRAINER, ROLE_SHARD}:
        from cprjob_bench.roles.member import run as be_member

        return be_member(options.role, environ)
    return run_role(options.role, partial(_run, options, environ), environ)


def _writer_of_clicks(to: str) -> Callable[[Sequence[int], int], None]:
    if to.startswith("kafka://"):
        # Only this one needs the client of Kafka.
        from cprjob_bench.roles.click_topic import ClickTopic

        return ClickTopic(to).send
    from cprjob_bench.roles.freshness import write_clicks

    return partial(write_clicks, Path(to))


def _run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    match options.role:
        case "snapshot":
            with loading_torch(environ):
                from cprjob_bench.roles.snapshot.main import run as measure

            measure(environ, sys.stdin, sys.stdout)
        case "priority":
            with loading_torch(environ):
                from cprjob_bench.roles.priority_trials import run as try_strategies

            try_strategies(environ, sys.stdin, sys.stdout)
        case "single":
            with loading_torch(environ):
                from cprjob_bench.roles.single import run as train_alone

            train_alone(environ)
        case "workers":
            with loading_torch(environ):
                from cprjob_bench.roles.worker_choice import run as choose_workers

            choose_workers(environ, options.to)
        case "products":
            with loading_torch(environ):
                from cprjob_bench.roles.products import run as multiply

            multiply(environ, sys.stdin, sys.stdout)
        case "saves":
            with loading_torch(environ):
                from cprjob_bench.roles.snapshot.sizes import run as time_saves

            time_saves(environ, sys.stdin, sys.stdout)
        case "hold":
            with loading_torch(environ):
                from cprjob_bench.roles.follower_hold import measure as measure_holds

            sys.stdout.write(
                to_json(measure_holds(options.folder, options.mib, options.updates, options.changed)) + "\n"
            )
        case "gauge":
            with loading_torch(environ):
                from cprjob_bench.roles.gauge import run as gauge

            gauge(sys.stdin, sys.stdout)
        case _:
            _run_without_torch(options, environ)
    return ExitCode.OK


def _run_without_torch(options: argparse.Namespace, environ: Mapping[str, str]) -> None:
    match options.role:
        case "clicks":
            from cprjob_bench.roles.freshness import write_backlog

            write_backlog(_writer_of_clicks(options.to), options.rows)
        case "freshness":
            from cprjob_bench.roles.freshness import measure as follow_clicks

            found = follow_clicks(
                _writer_of_clicks(options.data),
                options.chain,
                options.folder,
                options.seconds,
                options.every,
                options.rows,
            )
            sys.stdout.write(to_json(found) + "\n")
        case "samples":
            from cprjob_bench.roles.samples import run as write_samples

            write_samples(environ, options.rows, options.to)
        case _:
            from cprjob_bench.roles.samples import write_sweep

            write_sweep(options.rows, options.tables, options.to)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cprjob_bench", description=__doc__.partition("\n")[0])
    roles = parser.add_subparsers(dest="role", required=True, metavar="ROLE")
    roles.add_parser(
        "snapshot", help="measure saves of one shard: read a SnapshotBench from stdin, write reports to stdout"
    )
    roles.add_parser(
        "priority", help="measure losses of strategies: read a SavingExperiment from stdin, write reports to stdout"
    )
    roles.add_parser("single", help="train the job in this process, without saves: the reference of bench train")
    workers = roles.add_parser("workers", help="measure the number of workers of the job's trainers")
    workers.add_argument("--to", required=True, type=Path, help="the file for their number")
    roles.add_parser("products", help="time the matrix products of the job's network for each line of stdin, in ms")
    roles.add_parser("saves", help="save, restore and verify one shard: read SaveTrials from stdin, write SaveTimes")
    samples = roles.add_parser("samples", help="write synthetic samples for the job's tables in the Criteo layout")
    samples.add_argument("--rows", required=True, type=int, help="number of samples")
    samples.add_argument("--to", required=True, type=Path, help="the file; .gz packs it")
    sweep = roles.add_parser("sweep", help="write samples that use each row of some tables once, as Parquet")
    sweep.add_argument("--rows", required=True, type=int, help="rows of each table")
    sweep.add_argument("--tables", required=True, type=int, help="number of tables")
    sweep.add_argument("--to", required=True, type=Path, help="the file")
    clicks = roles.add_parser("clicks", help="write clicks, most of them on a few items")
    clicks.add_argument("--rows", required=True, type=int, help="number of clicks")
    clicks.add_argument("--to", required=True, help="a folder, which gets a file, or kafka://HOST:PORT/TOPIC")
    freshness = roles.add_parser("freshness", help="write clicks into followed data, and time their way to a follower")
    freshness.add_argument("--data", required=True, help="the folder of the data, or kafka://HOST:PORT/TOPIC")
    freshness.add_argument("--chain", required=True, help="the URI of the published models")
    freshness.add_argument("--folder", required=True, type=Path, help="the folder of the follower")
    freshness.add_argument("--seconds", required=True, type=float, help="for how long clicks are written")
    freshness.add_argument("--every", required=True, type=float, help="seconds between two writes of clicks")
    freshness.add_argument("--rows", required=True, type=int, help="number of clicks in each")
    hold = roles.add_parser("hold", help="time lookups in a model while a follower applies deltas")
    hold.add_argument("--folder", required=True, type=Path, help="an empty folder")
    hold.add_argument("--mib", required=True, type=int, help="size of the model")
    hold.add_argument("--updates", required=True, type=int, help="number of deltas")
    hold.add_argument("--changed", required=True, type=float, help="portion of rows in a delta")
    for role in (ROLE_TRAINER, ROLE_SHARD):
        roles.add_parser(role, help="run this member of a job with counters, as the environment describes it")
    roles.add_parser("gauge", help="time a fixed matrix product for each line of stdin, in GFLOP/s")
    return parser
