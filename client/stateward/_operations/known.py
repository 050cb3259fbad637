"""What a state has of its version as the daemon stores it, so that a later hydrate reads only what changed since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from stateward.state import Origin, State
from stateward.v1 import state_pb2


class LogPart(NamedTuple):
    """Stored entries of a log, as in the message of that name."""

    entries: Sequence[state_pb2.Value]
    first_index: int
    rewritten_version: int


class Known(NamedTuple):
    """A version that the client has. The values are shared with its state, and never changed in place."""

    version: int
    digest: bytes
    slots: dict[str, state_pb2.Value]
    logs: dict[str, LogPart]
    retired_logs: dict[str, int] | None  # None = not known

    @classmethod
    def of(cls, state: State | None, origin: Origin, ephemeral: tuple[str, ...]) -> Self | None:
        """Returns what a state has of its version; None if it has not all of it, or is no state of the thread."""
        if state is None or not state.digest or state.partial or state.origin is None or state.checkpoint is None:
            return None
        is_of_thread = state.origin.namespace == origin.namespace and state.origin.thread == origin.thread
        is_as_stored = state.schema_version == state.checkpoint.schema_version and state.slots._ephemeral == ephemeral
        stored = [log for log in state.logs._logs.values() if log.name in state.logs._stored]
        if not is_of_thread or not is_as_stored or not all(log._is_as_stored for log in stored):
            return None
        logs = {log.name: LogPart(list(log._stored), log._first, log.rewritten_version) for log in stored}
        return cls(state.version, state.digest, dict(state.slots._stored), logs, state.logs._find_retired())

    def change(
        self,
        removed_slots: Iterable[str],
        removed_logs: Iterable[str],
        slots: Mapping[str, state_pb2.Value],
        logs: Mapping[str, LogPart],
        retired_logs: Mapping[str, int],
    ) -> None:
        """Moves to a later version, as the contract says at `base_version`."""
        for name in removed_slots:
            self.slots.pop(name, None)
        for name in removed_logs:
            self.logs.pop(name, None)
        self.slots.update(slots)
        for name, added in logs.items():
            mine = self.logs.get(name)
            if mine is not None:
                if mine.first_index + len(mine.entries) != added.first_index:
                    raise RuntimeError(f"the daemon's changes of log {name!r} do not follow the entries before them")
                added = LogPart([*mine.entries, *added.entries], mine.first_index, added.rewritten_version)
            self.logs[name] = added
        if self.retired_logs is not None:
            self.retired_logs.update(retired_logs)  # one that was made again is a log now, whatever is here
