"""What the daemon would refuse of a state that a migration made, as far as that is known here.

So a dry run says it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stateward.v1 import diff_pb2

EDITS_MAX = 100_000
NAME_BYTES_MAX = 1024
_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_edits(diff: diff_pb2.Diff) -> None:
    """ValueError for more edits than a version may have, and for a name that no slot or log may have."""
    if len(diff.edits) > EDITS_MAX:
        raise ValueError(f"it makes {len(diff.edits):,} edits, and a version may have {EDITS_MAX:,}")
    for kind, name in _names(diff):
        size_bytes = len(name.encode())
        if not 1 <= size_bytes <= NAME_BYTES_MAX:
            shown = name if len(name) <= 40 else f"{name[:40]}…"
            raise ValueError(f"a {kind} has a name of 1 to {NAME_BYTES_MAX:,} bytes, and {shown!r} has {size_bytes:,}")
        if _CONTROL_CHARACTER.search(name):
            raise ValueError(f"a {kind} has no control characters in its name, as {name!r} has")


def _names(diff: diff_pb2.Diff) -> Iterator[tuple[str, str]]:
    for each in diff.edits:
        edit = getattr(each, each.WhichOneof("edit") or "")
        for kind in ("slot", "log"):
            if hasattr(edit, kind):
                yield kind, getattr(edit, kind)
