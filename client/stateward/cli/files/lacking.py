"""What a thread that an import made earlier lacks by now of what the file has. Somebody removed it since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from stateward.cli.files.exporting import KIND
from stateward.cli.show.output import counted
from stateward.errors import VersionNotFound, VersionPruned

if TYPE_CHECKING:
    from stateward import Client, Thread

# Records that one call asks for.
KEYS_A_CALL = 500


@dataclass
class Held:
    """What the file has of a thread, so far as it can be compared."""

    versions: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    heads: dict[str, int] = field(default_factory=dict)

    def take(self, record: Mapping[str, Any]) -> None:
        """Takes a record of the file."""
        match record[KIND]:
            case "version":
                self.versions.append(record["version"])
            case "record":
                self.keys.append(record["key"])
            case "end":
                self.heads = {each["name"]: each["version"] for each in record["branches"]}


def compare(client: Client, name: str, held: Held) -> tuple[int, str]:
    """Returns how many versions of the file the thread has, and what it lacks, in words; empty = nothing."""
    thread = client.thread(name)
    info = thread.info()
    gone = _gone_versions(thread, held, info.retained_versions, info.last_version)
    lacking = [counted(gone, "version")] if gone else []
    if records := len(held.keys) - _count_records(client, name, held.keys):
        lacking.append(counted(records, "record"))
    here = {branch.name: branch.version for branch in info.branches}
    # A head that is newer than in the file went on here.
    heads = [
        f"branch {branch!r} is " + (f"at version {here[branch]}, not {version}" if branch in here else "gone")
        for branch, version in held.heads.items()
        if here.get(branch, 0) < version
    ]
    what = f"it lacks {' and '.join(lacking)} of the file" if lacking else ""
    return len(held.versions) - gone, "; ".join(filter(None, [what, *heads]))


def _gone_versions(thread: Thread, held: Held, retained: int, last: int) -> int:
    newest = max(held.versions, default=0)
    if retained >= len(held.versions) + max(last - newest, 0):
        return 0  # all of the file, and all that were saved since
    return sum(not _has(thread, version) for version in held.versions)


def _has(thread: Thread, version: int) -> bool:
    try:
        thread.checkpoints.get(version)
    except (VersionNotFound, VersionPruned):
        return False
    return True


def _count_records(client: Client, name: str, keys: Sequence[str]) -> int:
    rest: Iterable[str] = iter(keys)
    count = 0
    while chunk := list(islice(rest, KEYS_A_CALL)):
        count += len(client.records(name).get_many(chunk, values=False))
    return count
