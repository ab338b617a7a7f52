"""The commands that a page of the documentation prints, by section, and the images that examples name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
#: All pages.
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *sorted(ROOT.glob("docs/**/*.md")),
    *ROOT.glob("charts/*/*.md"),
    *ROOT.glob("benchmarks/*.md"),
    *ROOT.glob("tests/*/*.md"),
]
#: End of the heading of a section for administrators.
_ADMINISTRATOR = "(once per cluster)"
#: Sections with commands that need no cluster.
_NO_CLUSTER = {"Without a cluster", "Contribute: two commands"}
#: Separators of commands. A substitution is a command, too.
_SEPARATORS = {"|", "&&", ";"}
_ASSIGNED = re.compile(r"^\w+=\$\((.*)\)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of sh, with the heading of second rank that it stands under."""

    section: str
    text: str

    def commands(self) -> Iterator[list[str]]:
        """Its commands as lists of words, in order."""
        for line in self.text.replace("\\\n", " ").splitlines():
            assigned = _ASSIGNED.match(line)
            lexer = shlex.shlex(assigned.group(1) if assigned else line, posix=True, punctuation_chars="|&;")
            lexer.whitespace_split, lexer.commenters = True, "#"
            command: list[str] = []
            for word in [*lexer, ";"]:
                if word not in _SEPARATORS:
                    command.append(word)
                elif command:
                    yield command
                    command = []


def blocks(page: Path) -> tuple[Block, ...]:
    """Return all blocks of sh of a page, in order."""
    found, section = list[Block](), ""
    tokens = MarkdownIt().parse(page.read_text("utf-8"))
    for place, token in enumerate(tokens):
        if (token.type, token.tag) == ("heading_open", "h2"):
            section = tokens[place + 1].content
        elif token.type == "fence" and token.info == "sh":
            found.append(Block(section, token.content))
    return tuple(found)


def of_a_user(page: Path) -> tuple[Block, ...]:
    """Return the blocks of a user with the rights of one namespace."""
    return tuple(
        block
        for block in blocks(page)
        if not block.section.endswith(_ADMINISTRATOR) and block.section not in _NO_CLUSTER
    )


def image(example: Path) -> str:
    """The image that a manifest names, as containerd writes it."""
    (name,) = re.findall(r"^ +image: (\S+)$", example.read_text("utf-8"), re.MULTILINE)
    return f"docker.io/{name if '/' in name else f'library/{name}'}"
