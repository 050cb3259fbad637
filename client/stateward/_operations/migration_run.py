"""Migrates all threads of a namespace on one daemon, while agents go on saving to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stateward._operations.listing import read_all
from stateward._operations.migrating import migrate
from stateward._operations.steps import Migrating, Operation, ThreadRef, at_once
from stateward._operations.threads import get_thread, list_threads, unreadable
from stateward.errors import (
    PermissionDenied,
    StatewardError,
    ThreadNotFound,
    UidMismatch,
    Unauthenticated,
    Unavailable,
    VersionNotFound,
)
from stateward.models import Access
from stateward.v1.thread_pb2 import UnreadableThread

# These errors end the run, because the next thread would fail in the same way.
FATAL = (Unavailable, Unauthenticated, PermissionDenied)
PAGE_SIZE = 1000
PROJECTIONS = "projections/"
"""Prefix of the branches on which `replay` stores its values; they have no schema of the application."""
PASSES_MAX = 100
"""Each pass finds the threads that were created during the pass before. The limit ends a run that never catches up."""


@dataclass(frozen=True)
class Failure:
    """A branch that was not migrated, and the error."""

    thread: str
    branch: str
    error: StatewardError


@dataclass
class Report:
    """The result of a run. `migrated` and `unchanged` count branches; most threads have one."""

    current: int
    """The schema to which the run migrates."""
    dry_run: bool
    threads: int = 0
    """How many threads were read."""
    migrated: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of branches by schema before and after. In a dry run: that would be migrated."""
    unchanged: int = 0
    """How many branches had the current schema already."""
    remote: int = 0
    """In a dry run: branches of an older schema whose thread another sidecar wrote last. A real run migrates those that
    are free by then, and fails with NotOwner for the others."""
    orphans: int = 0
    """Threads with Access.ORPHAN, which can only be read: their history continued on another sidecar."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all branches have (in a dry run: would have) the current schema."""
        return not self.failures and not self.remote


OpenRef = Callable[[str, str], ThreadRef]
Progress = Callable[[str, Report], None]


def run(
    migrations: Migrating,
    namespace: str,
    open_ref: OpenRef,
    names: Sequence[str] | None,
    dry_run: bool,
    on_progress: Progress,
) -> Operation[Report]:
    """Migrates the named threads; None = all of the namespace."""
    report = Report(migrations.current, dry_run)
    for name in names or ():
        # A caller who names a thread learns that it does not exist.
        yield from at_once(_migrate_thread(migrations, name, open_ref, report, must_exist=True))
        on_progress(name, report)
    if names is None:
        yield from _migrate_all(migrations, namespace, open_ref, report, on_progress)
    return report


def _migrate_all(
    migrations: Migrating, namespace: str, open_ref: OpenRef, report: Report, on_progress: Progress
) -> Operation[None]:
    """Migrates every thread once. Agents may create threads meanwhile, so the list is read until nothing is new."""
    seen: set[str] = set()
    closed: dict[str, UnreadableThread] = {}
    for _ in range(PASSES_MAX):
        found = yield from read_all(list_threads(namespace, page_size=PAGE_SIZE), closed)
        new = [info for info in found if info.name not in seen]
        if not new:
            break
        for info in new:
            seen.add(info.name)
            if info.access == Access.ORPHAN:
                report.orphans += 1
            else:
                yield from at_once(_migrate_thread(migrations, info.name, open_ref, report))
            on_progress(info.name, report)
    report.failures += [Failure(each.thread or each.uid, "", unreadable([each])) for each in closed.values()]


def _migrate_thread(
    migrations: Migrating, name: str, open_ref: OpenRef, report: Report, *, must_exist: bool = False
) -> Operation[None]:
    report.threads += 1
    try:
        info = yield from get_thread(open_ref(name, "main"))
    except ThreadNotFound as error:
        if must_exist:  # else somebody deleted it during the run
            report.failures.append(Failure(name, "", error))
        return
    except FATAL:
        raise
    except StatewardError as error:
        report.failures.append(Failure(name, "", error))
        return
    for branch in info.branches:
        if branch.name.startswith(PROJECTIONS):
            continue
        yield from _migrate_branch(migrations, open_ref(name, branch.name), report, info.access)


def _migrate_branch(
    migrations: Migrating, ref: ThreadRef, report: Report, access: Access | int | None
) -> Operation[None]:
    try:
        done = yield from migrate(migrations, ref, dry_run=report.dry_run)
    except (ThreadNotFound, UidMismatch, VersionNotFound):
        return  # somebody deleted it during the run
    except FATAL:
        raise
    except StatewardError as error:
        report.failures.append(Failure(ref.thread, ref.branch, error))
        return
    if done.found == migrations.current:
        report.unchanged += 1
    elif report.dry_run and access == Access.REMOTE:
        report.remote += 1
    else:
        step = (done.found, migrations.current)
        report.migrated[step] = report.migrated.get(step, 0) + 1
