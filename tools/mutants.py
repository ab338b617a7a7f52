"""Mutants of the product: defects, drawn by a seed, that the tests have to find.

A mutant is one changed expression or statement. `draw` prints a list of mutants. `cover` records which tests reach
which line. `run` applies one mutant after another in a copy of the last commit, and runs the tests that reach its line:

    python tools/mutants.py draw --seed 1 > tools/mutants.json
    python tools/mutants.py cover --tests tests/unit tests/contract --data build/unit.json
    python tools/mutants.py run --tests tests/unit tests/contract --cover build/unit.json --then tests/processes

All commands run in the project's environment. `cover` also needs the package `coverage` there.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".json")
COUNT = 60
#: Each area: its modules (the first area that has a module counts), and the test files of it in folders after `--then`.
AREAS = {
    "recovery": ("/recovery/|reconcile/recover", "simulation|killed_members|losses|restarts"),
    "ledger": ("cpr_operator/ledger|recovery/account|reconcile/members", "simulation|killed_members|losses"),
    "replay": (
        "exchange/(outbox|ring|pools)|shard/state|cpr_trainer/trainer/resume|reconcile/recovery_decision",
        "simulation|killed_members|several|losses|restarts",
    ),
    "parity": ("/parity/|shard/redundancy", "simulation|killed_members"),
    "exchange": ("/exchange/|shard/(service|server)", "simulation|killed_members|several|restarts"),
    "checkpoint": ("/checkpoint/", "simulation|saves|killed_members"),
    "store": ("cpr_trainer/store/", "stores|s3_servers|saves"),
    "reconcile": (
        "/reconcile/|cpr_operator/(controller/|queue|cluster/rate_limiter)",
        "simulation|killed_members|losses",
    ),
}
#: The functions that enforce each of the project's invariants, each as the end of a module's name and its own.
INVARIANTS = {
    1: "recover:_replace_lost recover:_replace_terminating effects:deletes effects:creates",
    2: "ledger:fits ledger:union ledger:clip decide:_fit decide:extent",
    3: "documents:read_document documents:read_part lineage:shard_lineage",
    4: "server:Server._join service:Service._handle service:Service._push",
    5: "effects:rosters effects:stamped writer:JobWriter.write_status writer:JobWriter._create_pods",
    6: "members:begins_incident members:_entered reports:_settle_shard",
    7: "service:Service._apply service:Service._is_next exchange:Exchange.push",
    8: "completion:succeed completion:complete completion:result_of",
    9: "observe:find_hung observe:_reporters observe:_by_enough observe:_hung observe:_unharmed",
    10: "rate_limiter:RateLimiter._has_capacity rate_limiter:RateLimiter._may_hold rate_limiter:RateLimiter._serve"
    " queue:ReconcileQueue._begin",
    11: "outbox:Outbox.acknowledge outbox:Outbox.rewind ring:Ring.take ring:Ring.last_evicted",
}
KINDS = ("flipped comparison", "dropped call", "off by one", "swapped arguments")
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Eq: ast.NotEq}
FLIPPED |= {ast.Is: ast.IsNot, ast.In: ast.NotIn}
FLIPPED |= {other: one for one, other in FLIPPED.items()}
LOOSENED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.Gt: ast.GtE}
LOOSENED |= {other: one for one, other in LOOSENED.items()}
LOGS = re.compile(r"log(ger|ging)?\.(debug|info|warning|error|exception|log)$", re.IGNORECASE)
#: Calls with arguments in any order, or messages.
UNORDERED = re.compile(r"^(min|max|zip|isinstance|issubclass|getattr|hasattr|cast|union|super\(\)\..*)$")
#: A test that takes longer hangs: one in this process, one that starts processes, and all tests of one mutant.
LIMIT_S, PROCESSES_LIMIT_S, RUN_LIMIT_S = 60, 240, 1500
NEAREST = 150


@dataclass(frozen=True)
class Mutant:
    """The `nth` place for `kind` in `function` of `file`: its line, its code `old`, and the mutant's code `new`."""

    file: str
    function: str
    kind: str
    nth: int
    line: int
    old: str
    new: str


class Finder(ast.NodeVisitor):
    """Collects the places in the functions of one module. Messages, annotations and defaults have none."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[tuple[Mutant, ast.expr | ast.stmt]] = []
        self._function = ""
        self._count: Counter[tuple[str, str]] = Counter()
        self.visit(ast.parse((ROOT / file).read_text()))

    def visit(self, node: ast.AST) -> None:
        """Take the places of this node and of those below it."""
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            outer, self._function = self._function, f"{self._function}.{node.name}".strip(".")
            defined = (ast.FunctionDef, ast.AsyncFunctionDef) if isinstance(node, ast.ClassDef) else ast.stmt
            for statement in node.body if node.name not in {"__repr__", "__str__"} else ():
                if isinstance(statement, defined):
                    self.visit(statement)
            self._function = outer
        elif not isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.MatchValue) and not _is_log(node):
            self._take(node)
            self.generic_visit(node)

    def _take(self, node: ast.AST) -> None:
        match node:
            case ast.Expr(value=ast.Call()) | ast.Expr(value=ast.Await(value=ast.Call())):
                self._add("dropped call", node, "pass")
            case ast.Compare(ops=[sign]):
                for kind, signs in (("flipped comparison", FLIPPED), ("off by one", LOOSENED)):
                    if type(sign) in signs:
                        changed = ast.Compare(node.left, [signs[type(sign)]()], node.comparators)
                        self._add(kind, node, f"({ast.unparse(changed)})")
            case ast.Constant(value=int(number)) if number in range(3) and not isinstance(number, bool):
                self._add("off by one", node, str(number + 1))
                self._add("off by one", node, str(number - 1))
            case ast.Call(func=ast.Name("len")):
                self._add("off by one", node, f"({ast.unparse(node)} - 1)")
            case ast.Call() if not UNORDERED.search(ast.unparse(node.func)):
                self._swap(node)

    def _swap(self, node: ast.Call) -> None:
        """Swap two arguments that stand side by side. Those of two kinds differ in type, which shows at once."""
        keywords = [keyword for keyword in node.keywords if keyword.arg]
        for at in range(len(node.args) + len(keywords) - 1):
            changed = copy.deepcopy(node)
            names = [keyword for keyword in changed.keywords if keyword.arg]
            values = [*changed.args, *(keyword.value for keyword in names)]
            one, other = values[at : at + 2]
            same_type = type(one) is type(other) in {ast.Name, ast.Attribute, ast.Subscript, ast.Constant}
            if same_type and ast.unparse(one) != ast.unparse(other):
                values[at : at + 2] = other, one
                changed.args = values[: len(node.args)]
                for keyword, value in zip(names, values[len(node.args) :], strict=True):
                    keyword.value = value
                self._add("swapped arguments", node, ast.unparse(changed))

    def _add(self, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        nth = self._count[self._function, kind] = self._count[self._function, kind] + 1
        if self._function:
            self.found.append((Mutant(self.file, self._function, kind, nth, node.lineno, ast.unparse(node), new), node))


def _is_log(node: ast.AST) -> bool:
    """Return whether the statement only logs."""
    return isinstance(node, ast.Expr) and LOGS.search(ast.unparse(node).partition("(")[0]) is not None


def area_of(file: str) -> str:
    """The area of a module; empty if it has none."""
    return next((area for area, (modules, _) in AREAS.items() if re.search(modules, file)), "")


def modules() -> list[str]:
    """All modules of the areas."""
    files = [path for place in ("operator", "trainer_image") for path in sorted((ROOT / place).rglob("*.py"))]
    return [file for file in (str(path.relative_to(ROOT)) for path in files) if area_of(file)]


def draw(seed: int) -> list[dict[str, Any]]:
    """Mutants of the functions that enforce each invariant, then of the areas that have the fewest so far."""
    rng = random.Random(seed)
    found = [mutant for file in modules() for mutant, _ in Finder(file).found]
    drawn: list[tuple[str, Mutant]] = []

    def draw_one(of: str, pool: list[Mutant]) -> None:
        """From the pool: first a kind, then a function. No function has two."""
        taken = {(mutant.file, mutant.function) for _, mutant in drawn}
        pool = [mutant for mutant in pool if (mutant.file, mutant.function) not in taken]
        kind = rng.choice([kind for kind in KINDS if any(mutant.kind == kind for mutant in pool)])
        place = rng.choice(sorted({(mutant.file, mutant.function) for mutant in pool if mutant.kind == kind}))
        drawn.append((of, rng.choice([m for m in pool if m.kind == kind and (m.file, m.function) == place])))

    for number, functions in INVARIANTS.items():
        pools = [[m for m in found if f"{m.file[:-3]}:{m.function}".endswith(f"/{name}")] for name in functions.split()]
        if not all(pools):
            sys.exit(f"invariant {number}: a function of {functions} has no place for a mutant, or is not there")
        draw_one(f"invariant {number}", [mutant for pool in pools for mutant in pool])
    while len(drawn) < COUNT:
        had = Counter(area_of(mutant.file) for _, mutant in drawn)
        area = min(AREAS, key=lambda name: had[name])
        draw_one(area, [mutant for mutant in found if area_of(mutant.file) == area])
    return [{"number": number, "of": of, **asdict(mutant)} for number, (of, mutant) in enumerate(drawn, 1)]


def placed(mutant: Mutant) -> tuple[str, range]:
    """The module's source with the mutant in it, and the lines that it changes today."""
    today = {replace(other, line=mutant.line): node for other, node in Finder(mutant.file).found}
    node = today.get(mutant)
    if node is None or node.end_lineno is None or node.end_col_offset is None:
        sys.exit(f"not found: {mutant.kind} {mutant.nth} in {mutant.function} of {mutant.file}: {mutant.old}")
    lines = (ROOT / mutant.file).read_bytes().splitlines(keepends=True)
    before = b"".join([*lines[: node.lineno - 1], lines[node.lineno - 1][: node.col_offset]])
    after = b"".join([lines[node.end_lineno - 1][node.end_col_offset :], *lines[node.end_lineno :]])
    return (before + mutant.new.encode() + after).decode(), range(node.lineno, node.end_lineno + 1)


def cover(tests: list[str], data: Path) -> None:
    """Run the tests, and write which of them reach each line of the areas, and the time of each test."""
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder, "coveragerc")
        rules.write_text("[run]\ninclude =\n" + "".join(f"  {ROOT / module}\n" for module in modules()))
        paths = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
        env = os.environ | {"COVERAGE_FILE": f"{folder}/data", "MUTANTS_SECONDS": f"{folder}/s", "PYTHONPATH": paths}
        coverage = [sys.executable, "-m", "coverage"]
        pytest_ = ["-m", "pytest", "-q", "-p", "coverage_contexts", "-p", "no:cacheprovider", *tests]
        subprocess.run([*coverage, "run", f"--rcfile={rules}", *pytest_], cwd=ROOT, env=env, check=False)  # noqa: S603
        report = [*coverage, "json", "-q", "--show-contexts", f"--rcfile={rules}", "-o", f"{folder}/json"]
        subprocess.run(report, cwd=ROOT, env=env, check=True)  # noqa: S603
        files = json.loads(Path(folder, "json").read_text())["files"]
        lines = {f"{file}:{line}": tests for file, each in files.items() for line, tests in each["contexts"].items()}
        data.parent.mkdir(parents=True, exist_ok=True)
        seconds = json.loads(Path(folder, "s").read_text())
        data.write_text(json.dumps({"lines": lines, "seconds": seconds}))


class Copy:
    """A copy of the last commit, with an environment of its own: all that its tests start imports the copy's code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = (
            ["-C", str(folder), "pull", "--quiet"]
            if folder.exists()
            else ["clone", "--quiet", "--local", str(ROOT), str(folder)]
        )
        subprocess.run(["git", *command], check=True)  # noqa: S603, S607
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)  # noqa: S603
        made, theirs = folder / ".venv", Path(sys.prefix)
        packages = next(made.glob("lib/python*/site-packages"))
        places = [folder / "operator", folder / "trainer_image", folder / "benchmarks"]
        places.append(theirs / packages.relative_to(made))
        Path(packages, "copy.pth").write_text("".join(f"{place}\n" for place in places))
        for script in theirs.glob("bin/*"):
            if not (made / "bin" / script.name).exists() and script.read_bytes()[:2] == b"#!":
                shutil.copy(script, made / "bin")
                (made / "bin" / script.name).write_text(script.read_text().replace(str(theirs), str(made)))

    @contextlib.contextmanager
    def holding(self, mutant: Mutant) -> Iterator[None]:
        """The mutant is in the copy."""
        try:
            self._write(mutant.file, placed(mutant)[0])
            yield
        finally:
            self._write(mutant.file, (ROOT / mutant.file).read_text())

    def _write(self, file: str, source: str) -> None:
        path = self.folder / file
        path.write_text(source)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):  # of the same size and second, perhaps
            compiled.unlink()

    def test(self, tests: Sequence[str], limit_s: int) -> str:
        """Run the tests up to the first failure: its name, or "" if all passed."""
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)
        listed = self.folder / ".git" / "tests"
        listed.write_text("\n".join(tests))
        options = f"-x -q -rfE --tb=line -p no:cacheprovider --hypothesis-seed=0 -o timeout={limit_s}".split()
        command = [f"{self.folder}/.venv/bin/python", "-m", "pytest", *options, f"@{listed}"]
        env = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
        with subprocess.Popen(  # noqa: S603
            command, cwd=self.folder, env=env, text=True, start_new_session=True, stdout=-1, stderr=subprocess.STDOUT
        ) as run:
            try:
                output = run.communicate(timeout=RUN_LIMIT_S)[0]
            except subprocess.TimeoutExpired:
                return "timeout"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(run.pid, signal.SIGKILL)
        if run.returncode in {0, 5}:
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", output, re.MULTILINE)
        if failed is None:
            return f"pytest ended with {run.returncode}: {output[-300:]!r}"
        return failed[1] + (" (timeout)" if "Timeout" in (failed[2] or "") else "")


def stages(mutant: Mutant, options: argparse.Namespace) -> Iterator[tuple[list[str], int]]:
    """The tests to try, nearest first, and how long one of them may take."""
    area, seconds, reach = area_of(mutant.file), dict[str, float](), set[str]()
    for data in map(json.loads, (path.read_text() for path in options.cover)):
        seconds |= data["seconds"]
        reach |= {test for line in placed(mutant)[1] for test in data["lines"].get(f"{mutant.file}:{line}", ())}
    words = {Path(mutant.file).stem, Path(mutant.file).parent.name, area}
    reached = [test for test in reach if test in seconds and test.startswith(tuple(options.tests))]
    nearest = sorted(reached, key=lambda test: (not any(word in test for word in words), seconds[test]))
    yield nearest[:NEAREST], LIMIT_S
    yield nearest[NEAREST:], LIMIT_S
    for place in options.then:
        files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / place).rglob("test_*.py"))
        yield [file for file in files if re.search(AREAS[area][1], file)], PROCESSES_LIMIT_S


def judge(mutant: Mutant, copied: Copy, options: argparse.Namespace, unsound: set[str]) -> str:
    """Return the outcome of a mutant. A test that fails without the mutant, too, is left out from then on."""
    tried = 0
    for tests, limit_s in stages(mutant, options):
        while left := [test for test in tests if test not in unsound]:
            with copied.holding(mutant):
                failed = copied.test(left, limit_s)
            if not failed:
                tried += len(left)
                break
            test = failed.partition("[")[0].partition(" ")[0]
            if not test.startswith("tests/") or not copied.test([test], limit_s):
                return f"killed by {failed}"
            unsound |= {test, test.partition("::")[0]} & set(left)
    return f"survived {tried} tests and files"


def run(options: argparse.Namespace) -> None:
    """Try the mutants of the list, one after another, and print the outcome of each."""
    listed = json.loads(LIST.read_text())["mutants"]
    results: list[dict[str, Any]] = []
    unsound: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        copied = Copy(options.copy or Path(folder, "copy"))
        for entry in listed:
            if options.only and entry["number"] not in options.only:
                continue
            mutant = Mutant(**{name: value for name, value in entry.items() if name not in {"number", "of"}})
            began = time.monotonic()
            result = judge(mutant, copied, options, unsound)
            took = time.monotonic() - began
            print(f"{entry['number']} {mutant.file}:{mutant.line} {result} in {took:.0f} s", flush=True)  # noqa: T201
            results.append({**entry, "result": result, "seconds": round(took)})
            if options.out:
                options.out.write_text(json.dumps(results, indent=1) + "\n")
    killed = sum(each["result"].startswith("killed") for each in results)
    print(f"{killed} of {len(results)} killed")  # noqa: T201


def main() -> None:
    """Run the command that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    each = commands.add_parser("draw", help="print a list of mutants")
    each.add_argument("--seed", type=int, required=True)
    each = commands.add_parser("cover", help="record which tests reach which line")
    each.add_argument("--tests", nargs="+", required=True)
    each.add_argument("--data", type=Path, required=True, help="a file to write that to")
    each = commands.add_parser("run", help="run the tests against each mutant of the list")
    each.add_argument("--tests", nargs="+", required=True, help="those of them that reach a mutant are run")
    each.add_argument("--cover", nargs="+", type=Path, required=True, help="files that `cover` wrote")
    each.add_argument("--then", nargs="*", default=[], help="folders with files that the mutant's area selects")
    each.add_argument("--only", type=lambda text: set(map(int, text.split(","))), help="numbers, with commas between")
    each.add_argument("--copy", type=Path, help="a folder to keep the copy in")
    each.add_argument("--out", type=Path, help="a file for the results, as JSON")
    options = parser.parse_args()
    match options.command:
        case "draw":
            print(json.dumps({"seed": options.seed, "mutants": draw(options.seed)}, indent=1))  # noqa: T201
        case "cover":
            cover(options.tests, options.data)
        case _:
            run(options)


if __name__ == "__main__":
    main()
