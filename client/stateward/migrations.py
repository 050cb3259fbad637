"""Migrations: functions that change states of older schemas to the schema that this program expects.

    migrations = Migrations(current=3)

    @migrations.step(1, 2)
    def name_the_parts(state):
        state.slots["customer"] = {"name": state.slots.pop("customer_name")}

    @migrations.step(2, 3)
    def ...

    client = Client(migrations=migrations)             every thread of this client
    thread = client.thread("booking-42", migrations=migrations)

A state of an older schema is migrated in memory when it is hydrated, and its next save stores the current schema.
Methods that work without the state (append, increment, set_slot; reading, following and replaying a log) migrate the
head first. `thread.migrate()` migrates the head and saves it at once; `client.migrate()` does so for all threads. Old
versions stay as they are.

Schemas are numbers, and may be given as text ("1"). A version that was saved without a schema has the schema of its
parent. If no ancestor has one either, the schema is `unsaid`, or the lowest registered one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from stateward._frames import at_the_caller, ends_at_the_caller
from stateward._operations import migrating
from stateward._operations.migration_rules import Paths, check_edits
from stateward._operations.migration_run import Failure as Failure  # noqa: PLC0414  part of a report
from stateward._operations.migration_run import Report as Report  # noqa: PLC0414  returned by `run`
from stateward.errors import StatewardError
from stateward.state import State

Schema: TypeAlias = int | str
Step: TypeAlias = Callable[[State], State | None]
S = TypeVar("S", bound=Step)


class NoMigrationPath(StatewardError):
    """No registered steps lead from a version's schema to the current one. Register the missing steps. If `found` is
    greater than `wanted`, this program is older than the state: update the program."""

    def __init__(self, thread: str, version: int, found: int, wanted: int) -> None:
        advice = (
            "update this program, which is older than the state" if found > wanted else "register the missing steps"
        )
        super().__init__(
            f"thread {thread!r} version {version} has schema {found}, and no migration leads from {found} to {wanted}; "
            f"{advice}"
        )
        self.thread, self.version, self.found, self.wanted = thread, version, found, wanted


class MigrationFailed(StatewardError):
    """A step raised an error, or made a state that cannot be stored. Nothing was saved. Correct the step; `__cause__`
    is the error."""

    def __init__(self, thread: str, version: int, step: tuple[int, int], problem: str) -> None:
        super().__init__(
            f"thread {thread!r} version {version}: the migration from {step[0]} to {step[1]} failed: {problem}"
        )
        self.thread, self.version, self.step = thread, version, step


@ends_at_the_caller
class Migrations:
    """The steps from one schema to another.

    `current` is the schema that this program works with. `unsaid` is the schema of versions that were saved without
    one, as were all their ancestors. None = the lowest registered schema, so give `unsaid` before you remove the oldest
    steps.
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
        """The schema of versions that were saved without one."""
        if self._unsaid is not None:
            return self._unsaid
        return min((start for start, _ in self._steps), default=self.current)

    def step(self, start: Schema, end: Schema) -> Callable[[S], S]:
        """Registers a plain function that migrates a state from one schema to another. The function changes the state
        and returns None, or returns another State, whose slots and logs replace those of the first.

        A migration takes the fewest steps. Raises ValueError if the pair is registered already, if the steps make a
        circle, or if two shortest ways have the same length.
        """
        edge = (read_schema(start), read_schema(end))

        @at_the_caller
        def register(function: S) -> S:
            if inspect.iscoroutinefunction(function):
                raise TypeError(
                    "a migration must be a plain function, not a coroutine function: its state is in memory"
                )
            self._paths.add(*edge)
            self._steps[edge] = function
            return function

        return register

    _bring_up = migrating.bring_up
    _prepare_append = migrating.prepare_append
    _prepare_reading = migrating.prepare_reading

    def _require_path(self, thread: str, version: int, found: int) -> list[tuple[int, int]]:
        path = self._paths.find(found, self.current)
        if path is None:
            raise NoMigrationPath(thread, version, found, self.current)
        return path

    def _apply(self, thread: str, state: State, found: int, *, must_fit: bool = False) -> None:
        """Takes the steps. `must_fit` also checks whether the result can be stored, as far as the client knows the
        daemon's limits."""
        for step in self._require_path(thread, state.version, found):
            try:
                made = self._steps[step](state)
                if made is not None and made is not state:
                    _adopt(state, made)
                if must_fit and step[1] == self.current:
                    check_edits(state._collect().diff)
            except Exception as error:
                raise MigrationFailed(thread, state.version, step, f"{type(error).__name__}: {error}") from error
        state.schema_version = self.current


def read_schema(schema: Schema) -> int:
    """Returns the number of a schema, given as number or text. Raises ValueError for anything else."""
    if isinstance(schema, str) and schema.isascii() and schema.isdecimal():
        schema = int(schema)
    if not isinstance(schema, int) or isinstance(schema, bool) or not 0 <= schema < 1 << 63:
        raise ValueError(f"{schema!r} is no schema version; schemas are whole numbers from 0 on, such as 2 or '2'")
    return schema


def _adopt(state: State, made: Any) -> None:
    """Replaces the content of `state`, which still continues from its own version."""
    if not isinstance(made, State):
        raise TypeError(f"a migration must return None or a State, not a {type(made).__name__}")
    for name in set(state.slots) - set(made.slots):
        del state.slots[name]
    state.slots.update(made.slots)
    for name in set(state.logs) - set(made.logs):
        del state.logs[name]
    for name, log in made.logs.items():
        state.logs[name] = list(log)
