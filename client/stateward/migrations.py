"""Schema versions: states saved by older programs, brought to the shape that this one expects.

    migrations = Migrations(current=3)

    @migrations.step(1, 2)
    def name_the_parts(state):
        state.slots["customer"] = {"name": state.slots.pop("customer_name")}

    @migrations.step(2, 3)
    def ...

    client = Client(migrations=migrations)             every thread of this client
    thread = client.thread("booking-42", migrations=migrations)

A state of an older schema is migrated in memory when it is hydrated, and its next save carries the current schema.
What works without the state (append, increment, set_slot; reading, following and replaying a log) migrates the head
first. `thread.migrate()` saves it at once, and `client.migrate()` does that to all threads. Old versions stay as they
were.

Schemas are numbers, and may be given as text ("1"). A version whose schema nobody said has that of its parent, and
where none is said at all the first one that is registered, or `unsaid`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

from stateward._operations import migrating
from stateward._operations.migration_limits import check_edits
from stateward._operations.migration_paths import Paths
from stateward._operations.migration_run import Failure as Failure  # noqa: PLC0414  part of a report
from stateward._operations.migration_run import Report as Report  # noqa: PLC0414  what `run` answers
from stateward._operations.steps import Operation, ThreadRef
from stateward.errors import StatewardError
from stateward.state import State

Schema: TypeAlias = int | str
Step: TypeAlias = Callable[[State], State | None]
S = TypeVar("S", bound=Step)


class NoMigrationPath(StatewardError):
    """No registered steps lead from the schema of a version to the current one. Register what is missing; where
    `found` is newer than `wanted`, this program is older than the state: update it."""

    def __init__(self, thread: str, version: int, found: int, wanted: int) -> None:
        advice = "this program is older than the state" if found > wanted else "register the steps that are missing"
        super().__init__(
            f"thread {thread!r} version {version} has schema {found}, and no migration leads from {found} to {wanted}; "
            f"{advice}"
        )
        self.thread, self.version, self.found, self.wanted = thread, version, found, wanted


class MigrationFailed(StatewardError):
    """A step raised (that is the `__cause__`), or made what cannot be stored. Nothing was saved: correct the step."""

    def __init__(self, thread: str, version: int, step: tuple[int, int], problem: str) -> None:
        super().__init__(
            f"thread {thread!r} version {version}: the migration from {step[0]} to {step[1]} failed: {problem}"
        )
        self.thread, self.version, self.step = thread, version, step


class Migrations:
    """The steps from one schema to another, and the schema that this program works with.

    `current` is that schema. `unsaid` is the one of versions that say none, nor any of their ancestors; None = the
    lowest that is registered, so give it once the oldest steps are taken out.
    """

    def __init__(self, current: Schema, *, unsaid: Schema | None = None) -> None:
        self.current = read_schema(current)
        self._unsaid = None if unsaid is None else read_schema(unsaid)
        self._steps: dict[tuple[int, int], Step] = {}
        self._paths = Paths()

    def __repr__(self) -> str:
        return f"Migrations(current={self.current}, steps={sorted(self._steps)})"

    @property
    def unsaid(self) -> int:
        """The schema of versions that say none."""
        if self._unsaid is not None:
            return self._unsaid
        return min((start for start, _ in self._steps), default=self.current)

    def step(self, start: Schema, end: Schema) -> Callable[[S], S]:
        """Registers a plain function that brings a state from one schema to another, by changing it (and returning
        None) or by returning another State, whose slots and logs then take the place of all that was there.

        The fewest steps to the current schema are taken. ValueError for a pair that is registered already, for a
        circle, and for two ways of the same length.
        """
        edge = (read_schema(start), read_schema(end))

        def register(function: S) -> S:
            if inspect.iscoroutinefunction(function):
                raise TypeError("a migration is a plain function: it works on a state that is in memory")
            self._paths.add(*edge)
            self._steps[edge] = function
            return function

        return register

    def _bring_up(self, ref: ThreadRef, state: State, read: Callable[[], Operation[State]]) -> Operation[State]:
        return migrating.bring_up(self, ref, state, read)

    def _prepare_append(self, ref: ThreadRef) -> Operation[int]:
        return migrating.prepare_append(self, ref)

    def _prepare_reading(self, ref: ThreadRef, version: int | None) -> Operation[None]:
        return migrating.prepare_reading(self, ref, version)

    def _require_path(self, thread: str, version: int, found: int) -> list[tuple[int, int]]:
        path = self._paths.find(found, self.current)
        if path is None:
            raise NoMigrationPath(thread, version, found, self.current)
        return path

    def _apply(self, thread: str, state: State, found: int, *, must_fit: bool = False) -> None:
        """Takes the steps. `must_fit` also tries whether what they make can be stored, as far as that is known here."""
        for step in self._require_path(thread, state.version, found):
            with _named(thread, state.version, step):
                made = self._steps[step](state)
                if made is not None and made is not state:
                    _adopt(state, made)
                if must_fit and step[1] == self.current:
                    check_edits(state.collect().diff)
        state.schema_version = self.current


class _named:  # noqa: N801  reads as a function
    """Says of every exception where it was raised."""

    def __init__(self, thread: str, version: int, step: tuple[int, int]) -> None:
        self._thread, self._version, self._step = thread, version, step

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            problem = f"{type(error).__name__}: {error}"
            raise MigrationFailed(self._thread, self._version, self._step, problem) from error


def read_schema(schema: Schema) -> int:
    """The number of a schema, given as number or text; ValueError for anything else."""
    if isinstance(schema, str) and schema.isascii() and schema.isdecimal():
        schema = int(schema)
    if not isinstance(schema, int) or isinstance(schema, bool) or not 0 <= schema < 1 << 63:
        raise ValueError(f"{schema!r} is no schema version: those are whole numbers from 0, such as 2 or '2'")
    return schema


def _adopt(state: State, made: Any) -> None:
    """Gives `state` the content of another one: it goes on from its own version."""
    if not isinstance(made, State):
        raise TypeError(f"a migration returns None or a State, not a {type(made).__name__}")
    for name in _only_in(state.slots, made.slots):
        del state.slots[name]
    for name, value in made.slots.items():
        state.slots[name] = value
    for name in _only_in(state.logs, made.logs):
        del state.logs[name]
    for name, log in made.logs.items():
        state.logs[name] = list(log)


def _only_in(one: Iterable[str], other: Any) -> Iterator[str]:
    return iter([name for name in one if name not in other])
