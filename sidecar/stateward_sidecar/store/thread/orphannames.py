"""Names of orphans: `<thread>@@<epoch>`, with `.2`, `.3`, … if this disk has an orphan of that name already.

No thread is ever made under such a name, on any machine. So an orphan never hides a thread of another machine, and the
archive need not be asked about its name. An orphan's name may be longer than the name of a thread, by its ending.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from stateward_sidecar.errors import InvalidField

_ORPHAN = re.compile(r"(.+)@@[0-9]{1,19}(?:\.[0-9]{1,19})?", re.DOTALL)


def orphan_name(thread: str, epoch: int, is_taken: Callable[[str], bool]) -> str:
    """Returns the name of a new orphan of a thread, whose own entries were written in an epoch."""
    name, attempt = f"{thread}@@{epoch}", 1
    while is_taken(name):
        attempt += 1
        name = f"{thread}@@{epoch}.{attempt}"
    return name


def is_orphans(name: str) -> bool:
    """Returns whether only an orphan may have this name."""
    return "@@" in name and _ORPHAN.fullmatch(name) is not None


def bare_name(name: str) -> str:
    """Returns a name without the ending of an orphan's name."""
    found = _ORPHAN.fullmatch(name) if "@@" in name else None
    return found[1] if found is not None else name


def check_new(name: str, field: str = "thread") -> None:
    """Checks that a thread may be made under a name. Raises InvalidField."""
    if is_orphans(name):
        raise reserved(name, field)


def reserved(name: str, field: str = "thread") -> InvalidField:
    """Returns the error for a request that would make a thread under the name of an orphan."""
    return InvalidField(
        field, f"{name!r} ends in @@ and a number: only orphans have such names, so no thread can be made with it"
    )
