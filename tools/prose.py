"""Count the habits of prose that CONTRIBUTING.md rules out, in docstrings, comments and pages.

Without a path it reads all tracked files but the history: decisions, the changelog and the list of renames.

    python tools/prose.py                      # each sentence, as file:line: habit: sentence, and a count by package
    python tools/prose.py --count              # the count alone
    python tools/prose.py --messages PATH...   # string literals of at least four words, too
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Files that record what was written at their time.
HISTORY = re.compile(r"^(docs/adr/|docs/renames\.md|CHANGELOG\.md|LICENSE)")
#: Files that hold a habit as an example: the rule itself, and its tests.
EXAMPLES = re.compile(r"^(tools/prose\.py|tests/guard/test_prose\.py|tests/guard/test_vocabulary\.py)$")
#: Kinds of file whose lines of comment begin with a hash.
HASHED = {".sh", ".yaml", ".yml", ".toml", ".Dockerfile", ""}

_START = re.compile(r"^(?:What|Who|Where|That|Of|So|Which|How(?! to\b)|Whether|Whoever|Whatever|Whose)\b")
_SPEECH = re.compile(
    r"\b(?:tells?|told|says?|said|hears?|heard|knows?|knew|owes?|owed|believes?|asks? (?:for|a|the|each|every))\b"
    r"(?! apart)",
    re.IGNORECASE,
)
#: A person may say and know something.
_PERSON = re.compile(
    r"\b(?:you|users?|readers?|administrators?|developers?|people|person)\W+(?:\w+\W+)?$", re.IGNORECASE
)
_INDEFINITE = re.compile(r"\b(?:nobody|somebody|whoever|anybody|everybody)\b", re.IGNORECASE)
_PHRASE = re.compile(
    r"\b(?:of which|for want of|besides?|aside|alike|anew|as long as|whose|go(?:es|ing)? on|went on|gone on|"
    r"so many|so much|none the worse|comes? of)\b",
    re.IGNORECASE,
)
_FOUR_WORDS = re.compile(r"(?:\W*[A-Za-z]{2,} ){3}\W*[A-Za-z]{2,}")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z*`\"(])")


@dataclass(frozen=True, slots=True)
class Passage:
    """A docstring, a comment, a paragraph, a cell of a table or a message, with the line on which it begins."""

    line: int
    text: str

    def sentences(self) -> Iterator[tuple[int, str]]:
        """Yield each sentence of at least three words with its line."""
        start = 0
        for end in [*(found.end() for found in _SENTENCE_END.finditer(self.text)), len(self.text)]:
            words = self.text[start:end].split()
            if len(words) > 2:  # noqa: PLR2004
                blank = len(self.text[start:end]) - len(self.text[start:end].lstrip())
                yield self.line + self.text.count("\n", 0, start + blank), " ".join(words)
            start = end


def habit(sentence: str) -> str:
    """Return the name of the first habit that a sentence shows, or nothing."""
    if _START.match(sentence) and not sentence.endswith("?"):
        return "start"
    if any(not _PERSON.search(sentence[: found.start()]) for found in _SPEECH.finditer(sentence)):
        return "speech"
    if _INDEFINITE.search(sentence):
        return "person"
    return "phrase" if _PHRASE.search(sentence) else ""


def _comments(tokens: Iterable[tuple[int, int, str]]) -> Iterator[Passage]:
    """Join comments on consecutive lines, given as line, column and text."""
    lines = list[str]()
    first = (0, 0)
    for line, column, text in tokens:
        if lines and (line, column) != (first[0] + len(lines), first[1]):
            yield Passage(first[0], "\n".join(lines))
            lines = []
        if not lines:
            first = line, column
        lines.append(text.lstrip("#: "))
    if lines:
        yield Passage(first[0], "\n".join(lines))


def python_passages(source: str, *, messages: bool = False) -> Iterator[Passage]:
    """Yield docstrings and comments of a module, and its messages if they are wanted."""
    tree = ast.parse(source)
    docstrings = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[0] if node.body else None
            if (
                isinstance(body, ast.Expr)
                and isinstance(body.value, ast.Constant)
                and isinstance(body.value.value, str)
            ):
                docstrings.add(id(body.value))
                yield Passage(body.lineno, body.value.value)
    yield from _comments(
        (token.start[0], token.start[1], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )
    strings = (node for node in ast.walk(tree) if messages and isinstance(node, ast.Constant))
    for node in strings:
        if isinstance(node.value, str) and id(node) not in docstrings and _FOUR_WORDS.match(node.value):
            yield Passage(node.lineno, node.value)


def page_passages(text: str) -> Iterator[Passage]:
    """Yield paragraphs, items of lists, headings and cells of a page, without code, links and emphasis."""
    text = re.sub(r"^( *)```[\s\S]*?^\1```", lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", lambda found: "X" + "\n" * found[0].count("\n"), text)
    text = re.sub(r"\]\([^)]*\)|[\[*]", "", text)
    line, begin, block = 0, 0, list[str]()
    for line, each in enumerate([*text.splitlines(), ""], 1):
        if block and (not each.strip() or re.match(r"\s*(?:[-|#]|\d+\. )", each)):
            yield Passage(begin, "\n".join(block))
            block = []
        if each.startswith("|"):
            yield from (Passage(line, cell.strip()) for cell in each.strip("|").split("|"))
        elif each.strip() and not each.startswith("    "):
            begin = begin if block else line
            block.append(re.sub(r"^\s*(?:[-#]+|\d+\.) ", "", each))


def passages(path: Path, *, messages: bool = False) -> Iterator[Passage]:
    """Yield the prose of a file; nothing of a file that is not text."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        return
    if path.suffix == ".py":
        yield from python_passages(text, messages=messages)
    elif path.suffix == ".md":
        yield from page_passages(text)
    elif path.suffix in HASHED:
        hashed = ((number, line) for number, line in enumerate(text.splitlines(), 1) if re.match(r"\s*#(?!!)", line))
        yield from _comments((number, line.index("#"), line.strip()) for number, line in hashed)


def tracked(paths: Iterable[str] = ()) -> list[Path]:
    """Return the tracked files below the paths, relative to the root, without history and examples of habits."""
    command = ["git", "ls-files", "--", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    names = done.stdout.splitlines()
    return [
        Path(name) for name in names if not HISTORY.match(name) and not EXAMPLES.match(name) and Path(name).is_file()
    ]


def package(path: Path) -> str:
    """Return the name under which a file is counted: its package in the product, otherwise its folder."""
    depth = 3 if path.parts[0] in {"operator", "trainer_image"} else 2 if path.parts[0] == "tests" else 1
    return "/".join(path.parent.parts[:depth]) or path.name


def main() -> None:
    """Print the sentences and their count."""
    parser = argparse.ArgumentParser(description="Count habits of prose.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files and folders, instead of the whole tree")
    parser.add_argument("--count", action="store_true", help="print the count alone")
    parser.add_argument("--messages", action="store_true", help="read string literals of at least four words, too")
    given = parser.parse_args()
    counts, habits = Counter[str](), Counter[str]()
    for path in tracked(str(Path(each).resolve()) for each in given.paths):
        for passage in passages(ROOT / path, messages=given.messages):
            for line, sentence in passage.sentences():
                if name := habit(sentence):
                    counts[package(path)] += 1
                    habits[name] += 1
                    if not given.count:
                        print(f"{path}:{line}: {name}: {sentence}")  # noqa: T201
    for name, count in sorted(counts.items()):
        print(f"{count:5}  {name}")  # noqa: T201
    print(f"{counts.total():5}  all: " + ", ".join(f"{name} {count}" for name, count in habits.most_common()))  # noqa: T201


if __name__ == "__main__":
    main()
