"""Exported versions become threads again: edit for edit, on their branches, with their tags and settings.

The k-th record of a thread is its k-th version here. A thread that exists must be the beginning of what is restored,
which is compared edit by edit; then the restore goes on after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateward.cli.recordings import Line, Recording, parse, read_lines
from stateward.errors import StatewardError, ThreadNotFound, Unavailable
from stateward.exporting import FORMAT, MARK, edit_from_json, read_edits, read_options, value_from_json, value_to_json
from stateward.importing import RunInvalid, RunRefused

if TYPE_CHECKING:
    from stateward import Checkpoint, Client
    from stateward.v1.checkpoint_service_pb2 import SaveRequest

FACTS = ("checkpoint_id", "status_detail", "schema_version", "labels", "metrics", "wait_id", "branch")


@dataclass
class Restored:
    """What was restored."""

    threads: int = 0
    versions: int = 0
    versions_before: int = 0
    """Versions that were there already."""


def restore(
    client: Client,
    recording: Recording,
    prefix: str,
    *,
    resume: bool,
    limit: int | None,
    on_version: Callable[[Restored], None],
    on_problem: Callable[[str], None],
) -> Restored:
    """Restores the threads of a file, one after the other. What is wrong with one costs no other."""
    totals, given_up = Restored(), ""
    thread: _Thread | None = None
    source, count = "", 0
    for line, record in _records(recording, on_problem):
        where = f"{recording.path} line {line.number}"
        if record["thread"] != source:
            _finish(thread, totals, on_problem)
            thread, source, count = None, record["thread"], count + 1
            if limit is not None and count > limit:
                return totals
        if source == given_up:
            continue
        try:
            thread = thread or _Thread(client, prefix + source, record, resume=resume)
            is_new = thread.take(record)
        except (RunRefused, KeyError, TypeError, ValueError, AttributeError) as problem:
            on_problem(f"{where}: {problem if isinstance(problem, RunRefused) else _explain(problem)}")
            thread, given_up = None, source
        except Unavailable:
            raise
        except StatewardError as error:
            on_problem(f"{where}: {error.message}")
            thread, given_up = None, source
        else:
            totals.versions += is_new
            totals.versions_before += not is_new
            on_version(totals)
    _finish(thread, totals, on_problem)
    return totals


def _records(recording: Recording, on_problem: Callable[[str], None]) -> Iterator[tuple[Line, dict[str, Any]]]:
    for line in read_lines(recording.path):
        where = f"{recording.path} line {line.number}"
        try:
            record = parse(line, recording.path)
        except RunInvalid as error:
            on_problem(str(error))
            continue
        if not isinstance(record, dict) or not isinstance(record.get("thread"), str) or MARK not in record:
            on_problem(f"{where} is no exported version, as the lines before it are")
        elif record[MARK] != FORMAT:
            on_problem(f"{where} has format {record[MARK]!r}; this program reads {FORMAT}, so use a newer one")
        else:
            yield line, record


def _finish(thread: _Thread | None, totals: Restored, on_problem: Callable[[str], None]) -> None:
    if thread is None:
        return
    try:
        thread.finish()
        totals.threads += 1
    except RunRefused as error:
        on_problem(str(error))


def _explain(problem: Exception) -> str:
    what = f"lacks {problem}" if isinstance(problem, KeyError) else str(problem)
    return f"this is no version as `stateward export --versions` writes it: {what}"


class _Thread:
    """One thread in the course of being restored."""

    def __init__(self, client: Client, name: str, first: Mapping[str, Any], *, resume: bool) -> None:
        self._client, self._name = client, name
        self._handle = client.thread(name)
        self._create, self._later = read_options(first.get("options", {}))
        try:
            found = list(self._handle.checkpoints(page_size=1000))
        except ThreadNotFound:
            found = []
        self._there = sorted(found, key=lambda each: each.version)
        if self._there and not resume:
            raise RunRefused(
                f"thread {name!r} exists already; leave --no-resume out to go on with it, or give a --thread-prefix"
            )
        self._taken = 0
        self._saved = 0
        self._numbers: dict[int, int] = {0: 0}  # from the recorded numbers to those here
        self._heads: dict[str, int] = {}
        self._tags: dict[str, int] = {}

    def take(self, record: Mapping[str, Any]) -> bool:
        """Saves the version, or makes sure that it is the one that is there. True where it was saved."""
        if record["parent_version"] not in self._numbers:
            raise ValueError(f"its parent, version {record['parent_version']}, does not come before it")
        is_new = self._taken >= len(self._there)
        number = self._save(record) if is_new else self._check(record, self._there[self._taken])
        self._taken += 1
        self._saved += is_new
        self._numbers[record["version"]] = self._heads[record["branch"]] = number
        self._tags |= dict.fromkeys(record.get("tags", ()), number)
        return is_new

    def finish(self) -> None:
        """Sets what must come last. RunRefused where the thread has gone on since."""
        if self._taken < len(self._there):
            raise self._refusal(f"has {len(self._there)} versions, and the export {self._taken}")
        info = self._handle.get()
        has = {tag.name: tag.version for tag in info.tags}
        for name, version in self._tags.items():
            if has.get(name) != version:
                self._handle.tag(name, version)
        changes = {name: value for name, value in self._later.items() if getattr(info.options, name) != value}
        if changes:  # also where the restore before was cut off just here
            self._handle.update_options(**changes)

    def _save(self, record: Mapping[str, Any]) -> int:
        from stateward._operations import Call, Operation  # noqa: PLC0415  the client is loaded when it is used

        request = self._request(record)

        def save() -> Operation[int]:
            return int((yield Call("Save", request)).version)

        return self._client._run(save())

    def _request(self, record: Mapping[str, Any]) -> SaveRequest:
        from stateward._operations import new_request_id  # noqa: PLC0415
        from stateward.models import Status, choice_number  # noqa: PLC0415
        from stateward.v1 import checkpoint_service_pb2 as service  # noqa: PLC0415

        head, parent = self._heads.get(record["branch"], 0), self._numbers[record["parent_version"]]
        request = service.SaveRequest(
            namespace=self._client.namespace,
            thread=self._name,
            expected_version=head,
            status=choice_number(Status, record["status"]),  # type: ignore[arg-type]
            step=record.get("step"),
            metadata=value_from_json(record["metadata"]) if "metadata" in record else None,
            request_id=new_request_id(),
            create=None if self._taken else self._create.to_proto(),
            **{name: record[name] for name in FACTS if name in record},
        )
        if parent != head:
            request.parent.version = parent
        request.diff.SetInParent()
        for edit in record["edits"]:
            edit_from_json(edit, request.diff.edits.add())
        return request

    def _check(self, record: Mapping[str, Any], there: Checkpoint) -> int:
        """The number of the version that is there. RunRefused unless it is the recorded one."""
        parent = self._numbers[record["parent_version"]]
        facts = {name: value for name in FACTS if (value := getattr(there, name))}
        metadata = {"metadata": value_to_json(there.metadata_value)} if there.metadata_value is not None else {}
        recorded = {name: record[name] for name in FACTS if record.get(name)}
        recorded_metadata = {"metadata": record["metadata"]} if "metadata" in record else {}
        if (
            (there.parent_version, there.step) != (parent, record.get("step"))
            or (facts, metadata) != (recorded, recorded_metadata)
            or read_edits(self._handle, parent, there.version) != record["edits"]
        ):
            raise self._refusal(f"holds another version {there.version}")
        return there.version

    def _refusal(self, what: str) -> RunRefused:
        wrote = f"{self._saved} versions were written to it" if self._saved else "nothing was written to it"
        return RunRefused(f"thread {self._name!r} {what}; {wrote}, give another --thread-prefix")
