"""The danger: a promise of SECURITY.md that no test shows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HEADER = "| somebody who | can | cannot | test, in `tests/` |"


def rows_of(page: str) -> list[list[str]]:
    """The cells of the table of attackers."""
    lines = page.splitlines()
    begin = lines.index(HEADER) + 2
    end = next(number for number, line in enumerate(lines[begin:], begin) if not line.startswith("|"))
    return [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")] for line in lines[begin:end]]


def untrue(row: list[str], tests: Path) -> list[str]:
    """What is wrong with a row."""
    who, _, cannot, proofs = row
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", proofs)
    wrong = [f"{who}: no word of what it cannot do"] if not cannot else []
    if not named or ", ".join(f"`{file}::{test}`" for file, test in named) != proofs:
        wrong.append(f"{who}: name its tests as `folder/test_file.py::test_name`, with commas between: {proofs}")
    for file, test in named:
        path = tests / file
        tree = ast.parse(path.read_text() if path.exists() else "")
        if test not in {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}:
            wrong.append(f"{who}: there is no test {file}::{test}")
    return wrong


def test_each_attacker_has_a_test(repository: Path) -> None:
    """Each row says what somebody cannot do, and names a test that is there."""
    rows = rows_of((repository / "SECURITY.md").read_text())
    assert len(rows) >= 11
    assert [wrong for row in rows for wrong in untrue(row, repository / "tests")] == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (["has it", "read", "", "`start/test_sockets.py::test_the_socket_is_for_owner_and_group_only`"], "cannot do"),
        (["has a key", "read", "write", ""], "name its tests"),
        (["has a key", "read", "write", "`start/test_sockets.py::test_nothing`"], "no test"),
        (["has a key", "read", "write", "`start/test_nothing.py::test_nothing`"], "no test"),
    ],
)
def test_a_row_without_proof_is_found(repository: Path, row: list[str], said: str) -> None:
    """A check that accepts all rows would prove nothing."""
    assert len(found := untrue(row, repository / "tests")) == 1
    assert said in found[0]
