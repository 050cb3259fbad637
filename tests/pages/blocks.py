"""The pages of the repository, and the blocks of commands and code in them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

REPOSITORY = Path(__file__).resolve().parents[2]
# History: what its lines say was true once.
LEFT_OUT = {"CHANGELOG.md"}
SHELL = "shell"


@dataclass(frozen=True)
class Block:
    """A block of a page. `kind` is the word after the fence; an indented block and a command in a table are `shell`."""

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.kind}): {self.begin}"

    @property
    def begin(self) -> str:
        """The first line."""
        return self.text.partition("\n")[0].strip()


def pages() -> list[str]:
    """Every Markdown page that is tracked, or would be if everything were added now."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(name for name in names if name not in LEFT_OUT and (REPOSITORY / name).exists())


@cache
def blocks(page: str) -> list[Block]:
    """The blocks of a page, in their order. Only tests ask: collecting them reads no page."""
    tokens = MarkdownIt("commonmark").enable("table").parse((REPOSITORY / page).read_text())
    return list(_blocks(page, tokens))


def _blocks(page: str, tokens: list[Token]) -> Iterator[Block]:
    heads: list[str] = []  # of the columns of the table under way
    column = line = 0
    for token, following in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        line = token.map[0] + 1 if token.map else line
        if token.type == "fence":
            yield Block(page, line, (token.info.split() or ["text"])[0], token.content)
        elif token.type == "code_block":
            yield Block(page, line, SHELL, token.content)
        elif token.type == "table_open":
            heads = []
        elif token.type == "tr_open":
            column = 0
        elif token.type == "th_open":
            heads.append(following.content)
        elif token.type == "td_open":
            if heads[column] == "command":
                codes = [each for each in following.children or () if each.type == "code_inline"]
                yield from (Block(page, line, SHELL, f"{each.content}\n") for each in codes)
            column += 1
