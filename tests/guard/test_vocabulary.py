"""One vocabulary: identifiers, names of files and prose use the field's terms, and prose shows few of its habits.

docs/renames.md maps old names to new ones. Names on the wire and in the store stay, so the contract is exempt, as is
what was written before a release: decisions, and its section of the changelog.
"""

from __future__ import annotations

import importlib.util
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LOADED = importlib.util.spec_from_file_location("prose", ROOT / "tools" / "prose.py")
assert _LOADED is not None
assert _LOADED.loader is not None
prose = sys.modules["prose"] = importlib.util.module_from_spec(_LOADED)
_LOADED.loader.exec_module(prose)

#: Parts of identifiers and of file names that the tree does without, each with the field's term.
IDENTIFIERS = {
    "ahead": "prefetch",
    "alike": "equal",
    "ancestor": "source job",
    "anybody": "any user",
    "asked": "requested, polled",
    "asking": "remote exec, helper process",
    "attend": "poll_interrupts, check_cancelled",
    "attending": "poll_interrupts",
    "attends": "poll_interrupts",
    "away": "unavailable",
    "belief": "estimate",
    "beliefs": "estimates",
    "beside": "near, of",
    "board": "status",
    "catch": "replay barrier",
    "chief": "operator stub",
    "contender": "baseline",
    "contenders": "baselines",
    "crew": "workers, thread pool",
    "desk": "state, server",
    "draft": "state, manifest",
    "everybody": "all members",
    "everyone": "all members",
    "fate": "admission",
    "figures": "stats, metrics",
    "gone": "deleted, lost",
    "guarded": "prerequisites",
    "guarding": "prerequisites",
    "hear": "receive",
    "heard": "last_seen, received",
    "hearing": "liveness",
    "hears": "receive",
    "house": "simulation",
    "hub": "averaging server",
    "insist": "retry_until",
    "introduce": "authenticate",
    "keeper": "supervisor",
    "kept": "retained, resume state",
    "laboratory": "benchmarks",
    "lacking": "missing",
    "liar": "unauthenticated",
    "liars": "unauthenticated_ranks",
    "life": "process, run",
    "lives": "restarts",
    "lobby": "listener",
    "lone": "single",
    "mail": "event queue",
    "meeting": "agreement",
    "meetings": "agreement",
    "nobody": "no member, unauthenticated",
    "origin": "source, restore record",
    "outrun": "undo log full",
    "owe": "pending_charge",
    "owed": "pending_charge",
    "owes": "pending_charge",
    "patience": "retry, timeout_s",
    "pinning": "freeze",
    "promise": "announced replay end",
    "promised": "announced",
    "ride": "run",
    "room": "capacity, buffer",
    "rooms": "buffers",
    "saw": "on_pod_event, seen",
    "say": "send, report",
    "silence": "heartbeat timeout",
    "silent": "unresponsive",
    "somebody": "the role that acts",
    "spoke": "averaging client",
    "standing": "admission, state",
    "standstill": "process pause",
    "stick": "freeze_thread",
    "stories": "scenarios",
    "story": "report, scenario",
    "stray": "unexpected",
    "strays": "unexpected",
    "strike": "inject_fault",
    "strikes": "faults",
    "struck": "faulted",
    "tell": "notify, report",
    "tells": "notify, report",
    "told": "reported",
    "trains": "running",
    "turn": "tick, iteration",
    "turns": "ticks, iterations",
    "unheard": "unreported, no_reply",
    "untold": "unreported",
    "urgency": "priority",
    "verdict": "decision, result",
    "verdicts": "decisions, results",
    "wanted": "missing, desired, expected",
    "welcome": "accept_peer",
    "whoever": "the process that",
    "world": "simulation",
}
#: Names with a listed part that stay: on the wire, in the store, in the environment, options and JSON, of libraries,
#: and `draft`, a manifest that is not committed.
KEPT_NAMES = {
    "CPR_KEEPER",
    "GONE",
    "KEEPER",
    "KEPT_FILE",
    "MEETING",
    "SILENCE_S",
    "TensorBoard",
    "WELCOME",
    "WORLD",
    "catch_exceptions",
    "catch_warnings",
    "draft",
    "figures",
    "in_turn",
    "kept_bytes",
    "lives",
    "origin",
    "patience",
    "shard_lives",
    "silence_s",
    "silence_seconds",
    "silent",
    "tell",
    "told_lost",
    "told_mtbf",
    "wanted_rows",
    "world_size",
}
#: Words and phrases that prose does without, each with a plainer one.
PHRASES = {
    "ancestor": "source job",
    "anybody": "any user",
    "as long as": "while",
    "comes of": "results from",
    "contender": "baseline",
    "contenders": "baselines",
    "crew": "compute workers",
    "desk": "averaging state, parity server",
    "everybody": "all members",
    "for want of": "without",
    "go on": "continue",
    "goes on": "continues",
    "hearing": "liveness",
    "is away": "is unavailable",
    "keeper": "supervisor",
    "keepers": "supervisors",
    "laboratory": "benchmarks",
    "last words": "termination message",
    "liar": "unauthenticated peer",
    "liars": "unauthenticated peers",
    "lobby": "listener",
    "lone": "single",
    "meeting": "rendezvous, agreement",
    "meetings": "agreements",
    "nobody": "no process, no member",
    "none of them the worse": "unchanged",
    "none the worse": "unchanged",
    "of which": "whose, with",
    "origin record": "restore record",
    "outrun": "full undo log",
    "so much": "that much",
    "somebody": "a user, a process",
    "spoke": "averaging client",
    "standstill": "pause, suspension",
    "stories": "scenarios",
    "story": "scenario, report",
    "stray": "unexpected",
    "struck": "failed, faulted",
    "turn of the": "iteration of the",
    "unheard": "unreported",
    "untold": "unreported",
    "urgency": "priority",
    "verdict": "decision",
    "went on": "continued",
    "whoever": "the process that",
}
#: Names on the wire and in the store, and the two lists.
EXEMPT = ("trainer_image/cpr_contract/", "tests/contract/", "tests/guard/test_vocabulary.py", "tools/mutants.json")
#: Sentences with a habit of `tools/prose.py` in docstrings, comments and pages of the tree.
MOST_HABITS = 100

FILES = [path for path in prose.tracked() if not str(path).startswith(EXEMPT)]
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def parts(name: str) -> set[str]:
    """The words of a name in snake case or camel case."""
    return {part.lower() for part in PART.findall(name)}


def identifiers(source: str) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def names_in(path: Path) -> set[str]:
    """Return the identifiers of a file, and the parts of its path."""
    return {*path.parts[:-1], path.stem} | (
        identifiers((ROOT / path).read_text("utf-8")) if path.suffix == ".py" else set()
    )


def misnamed() -> Iterator[str]:
    """Each name with a part of the list: its file, itself, and the field's term. Names of tests are sentences."""
    for path in FILES:
        names = names_in(path)
        for name in sorted(name for name in names - KEPT_NAMES if not name.startswith("test_")):
            yield from (f"{path}: {name}: {IDENTIFIERS[part]}" for part in sorted(parts(name) & IDENTIFIERS.keys()))


def passages() -> Iterator[tuple[Path, int, str]]:
    """Each sentence of the tree, name of a test, and sentence of the changelog's section of the next release."""
    for path in FILES:
        if path.stem.startswith("test_"):
            names = (name for name in names_in(path) if name.startswith("test_"))
            yield from ((path, 1, name.replace("_", " ")) for name in names)
        for passage in prose.passages(ROOT / path):
            yield from ((path, line, sentence) for line, sentence in passage.sentences())
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    for passage in prose.page_passages("\n## ".join(changelog.split("\n## ")[:2])):
        yield from ((Path("CHANGELOG.md"), line, sentence) for line, sentence in passage.sentences())


@pytest.fixture(scope="module")
def sentences() -> list[tuple[Path, int, str]]:
    return list(passages())


def test_names_use_the_fields_terms() -> None:
    assert list(misnamed()) == []


def test_prose_uses_the_fields_terms(sentences: list[tuple[Path, int, str]]) -> None:
    listed = re.compile(rf"\b(?:{'|'.join(map(re.escape, PHRASES))})\b", re.IGNORECASE)
    found = [(path, line, each[0]) for path, line, sentence in sentences if (each := listed.search(sentence))]
    assert [f"{path}:{line}: {phrase}: {PHRASES[phrase.lower()]}" for path, line, phrase in found] == []


def test_prose_has_few_habits(sentences: list[tuple[Path, int, str]]) -> None:
    counts = Counter(prose.package(path) for path, _, sentence in sentences if prose.habit(sentence))
    assert counts.total() <= MOST_HABITS, f"python tools/prose.py lists them: {counts.most_common(5)}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""What a process reads."""', [(1, "start")]),
        (
            '"""Reads the roster.\n\nThe pod tells the operator. Nobody else does it.\n"""',
            [(3, "speech"), (3, "person")],
        ),
        ("x = 1  # asks for a report anew\n", [(1, "speech")]),
        ("# The first line is long enough.\n# So is the second one.\n", [(2, "start")]),
        ('"""You know the name. Which one is it? How to tell apart."""', []),
    ],
)
def test_habits_are_counted(source: str, found: list[tuple[int, str]]) -> None:
    counted = [
        (line, prose.habit(sentence))
        for passage in prose.python_passages(source)
        for line, sentence in passage.sentences()
    ]
    assert [each for each in counted if each[1]] == found


def test_pages_are_read_without_code_and_by_cell() -> None:
    page = (
        "# Title of page\n\nA first `So what` line.\n\n```sh\nSo is this.\n```\n\n| a | That of it |\n- Who reads it\n"
    )
    counted = [(line, prose.habit(each)) for passage in prose.page_passages(page) for line, each in passage.sentences()]
    assert counted == [(1, ""), (3, ""), (9, "start"), (10, "start")]
