"""Prints the findings of a verification as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stateward.cli.show.output import filled, print_table

if TYPE_CHECKING:
    from stateward.admin import Finding

COLUMNS = ("REASON", "NAMESPACE", "THREAD", "VERSION", "SEQUENCE", "WHAT IS WRONG")
OPTIONAL = ("NAMESPACE", "THREAD", "VERSION", "SEQUENCE")


def print_findings(findings: Sequence[Finding]) -> None:
    """Prints the findings. Leaves out optional columns that are empty."""
    columns, rows = filled(COLUMNS, list(map(_row, findings)), OPTIONAL)
    print_table(columns, rows, right=("VERSION", "SEQUENCE"), below=("WHAT IS WRONG",))


def _row(each: Finding) -> tuple[str, ...]:
    version, sequence = str(each.version or ""), str(each.sequence or "")
    return each.reason, each.namespace, each.thread or each.uid, version, sequence, each.message
