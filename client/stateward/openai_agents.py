"""Sessions and sandboxes of the OpenAI Agents SDK in Stateward. Needs the extra `openai-agents`."""

from __future__ import annotations

from collections.abc import Sequence
from io import IOBase
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any, cast

from stateward._answering import Answered, find_answers
from stateward._async.client import AsyncClient
from stateward._async.thread import AsyncThread
from stateward._connected import Connected
from stateward._keeping import keep, kept
from stateward._naming import name_for
from stateward._settling import settle
from stateward._telling import COMPLETED, RUNNING, YES_OR_NO, Told, call_of, waiting
from stateward.changes import Append, Change, DeleteSlot, SetSlot, TrimLog
from stateward.durations import Duration
from stateward.errors import (
    InvalidField,
    ThreadNotFound,
    UidMismatch,
    VersionMismatch,
    VersionNotFound,
    VersionPruned,
)
from stateward.options import Retention
from stateward.signals import Signal
from stateward.state import State
from stateward.values import RawValue
from stateward.workspaces import Rules

if TYPE_CHECKING:
    from agents import Agent, RunState
    from agents.items import TResponseInputItem
    from agents.memory.session_settings import SessionSettings

__all__ = ["StatewardSession", "StatewardSnapshots"]

LOG, RUN = "items", "run"
SPOOLED_BYTES = 64 << 20
"""A workspace that is downloaded is held in memory up to this size."""


class StatewardSession(Connected):
    """The history of one conversation, as a thread of Stateward with a log of items.

    It implements the SDK's `Session`. Adding items sends these items only, and they are durable when `add_items`
    returns. Any number of processes may use one session: none of their items is lost, and all see one order.

    A call that writes and is cancelled ends its write first, as the SDK's own sessions do: when CancelledError comes,
    the write is done, or never will be.

    `session_id` is the thread's name; an id that no thread can have is escaped. `ttl` says how long after its last item
    the session is deleted, None = never. `retention` says which versions are kept, None = all; the newest one has all
    items. Both are used when the first item makes the thread. `client` is an AsyncClient that you
    keep; without it the session makes one from `target`, `namespace` and the further options of
    `stateward.AsyncClient`, and `close` closes it.
    """

    def __init__(
        self,
        session_id: str,
        *,
        client: AsyncClient | None = None,
        target: str | None = None,
        namespace: str = "default",
        session_settings: SessionSettings | None = None,
        ttl: Duration | None = None,
        retention: Retention | None = None,
        **options: Any,
    ) -> None:
        self.session_id = session_id
        self.session_settings = session_settings
        super().__init__(client, target, namespace, options, ttl=ttl, retention=retention)
        self._name = name_for(session_id)
        self._given: Answered | None = None  # the answers with which a run was resumed

    @property
    def thread(self) -> AsyncThread:
        """A handle on the thread of the session."""
        return self._client.thread(self._name)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Returns the newest `limit` items, oldest first; None = the limit of `session_settings`, or all."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        last = None if limit is None or limit < 0 else limit
        state = await self._read(last)
        return [kept(item) for item in state.logs[LOG]]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Adds items at the end: all of them, or none if this raises.

        Raises TypeError or ValueError for an item that is no JSON, with the place of what is wrong, and UidMismatch
        if somebody cleared the session since it was read here: a late item does not bring it back.
        """
        if items:
            encoded = [keep(item, f"items[{index}]") for index, item in enumerate(items)]
            await settle(self._add(encoded, _status_after(items), _ended_in(items)))

    async def _add(self, encoded: list[RawValue], told: Told, ended: set[str]) -> None:
        edits, given = list[Change]([Append(LOG, tuple(encoded))]), self._given
        acks: list[Signal] = []
        if given is not None and not given.decisions.keys().isdisjoint(map(name_for, ended)):
            edits += [*given.edits, DeleteSlot(RUN)]
            acks = [given.signal]
        made = await self._continued(self._name).apply(edits, create=self._made_with, ack=acks, **told)
        self._given = None if acks else given
        self._work_on(self._name, made.uid)

    async def save_run(self, run: RunState[Any, Any]) -> None:
        """Keeps a run that waits for approvals beside its items, so that another process can resume it:

            result = await Runner.run(agent, "Book it", session=session)
            if result.interruptions:
                await session.save_run(result.to_state())

        Raises what `RunState.to_json` raises, and UidMismatch as `add_items`.
        """
        await settle(self._keep_run(keep(run.to_json(), RUN)))

    async def _keep_run(self, encoded: RawValue) -> None:
        await self._continued(self._name).apply([SetSlot(RUN, encoded)])

    async def resume_run(self, agent: Agent[Any], **options: Any) -> RunState[Any, Any] | None:
        """Returns the run that was kept, with its calls approved or rejected as somebody has answered; None = the
        session waits for no answer, or answers are missing, or no run was kept.

            run = await session.resume_run(agent)
            if run is not None:
                result = await Runner.run(agent, run, session=session)

        The items with the results of the calls acknowledge the answer. If the run fails before, this returns the run
        again. `options` are those of `RunState.from_json`. The reason of a rejection goes to the model.
        """
        from agents import RunState  # noqa: PLC0415  imported by the program

        found = await settle(find_answers(self._continued(self._name), [RUN]))
        if found is None or RUN not in found.state.slots:
            return None
        run = await RunState.from_json(agent, kept(found.state.slots[RUN]), **options)
        for call in run.get_interruptions():
            decision = found.decisions.get(name_for(str(call.call_id)))
            if decision is not None and decision.value is True:
                run.approve(call)
            elif decision is not None:
                run.reject(call, rejection_message=decision.message)
        self._given = found
        self._work_on(self._name, found.state.checkpoint.uid if found.state.checkpoint else "")
        return run

    async def _read(self, last: int | None) -> State:
        state = await self._client.thread(self._name).hydrate(logs={LOG: last})
        self._work_on(self._name, state.checkpoint.uid if state.checkpoint else "")
        return state

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes the newest item and returns it; None = there is none. Two callers never get the same item."""
        return await settle(self._pop())

    async def _pop(self) -> TResponseInputItem | None:
        while True:
            state = await self._read(1)
            log = state.logs[LOG]
            if not len(log):
                return None
            item: TResponseInputItem = kept(log[-1])
            try:
                trimmed = TrimLog(LOG, from_index=log.next_index - 1)
                await self._client.thread(self._name).apply([trimmed], parent=state.checkpoint)
            except (VersionMismatch, ThreadNotFound, UidMismatch):
                continue  # somebody added or removed an item since, or cleared the session
            return item

    async def clear_session(self) -> None:
        """Removes the session: its thread with all versions and its key. A later item makes a new one."""
        await settle(self._clear())

    async def _clear(self) -> None:
        await self._client.thread(self._name).delete(missing_ok=True)
        self._work_on(self._name, "")


def _ended_in(items: Sequence[Any]) -> set[str]:
    """The ids of the calls whose results are among the items."""
    found = [each for each in items if isinstance(each, dict)]
    ended = {str(each.get("call_id")) for each in found if str(each.get("type")).endswith("_output")}
    return ended | {
        str(each.get("approval_request_id")) for each in found if each.get("type") == "mcp_approval_response"
    }


def _status_after(items: Sequence[Any]) -> Told:
    """What items tell that are added together. The SDK adds a call with its result, unless a person has to approve it.
    A message of the assistant without a call beside it is the end of a run."""
    if not all(isinstance(each, dict) for each in items):  # a form that the SDK does not use
        return RUNNING
    ended = {each.get("call_id") for each in items if str(each.get("type")).endswith("_output")}
    asked = {}
    for each in items:
        kind, call_id = str(each.get("type")), each.get("call_id")
        if kind.endswith("_call") and call_id and call_id not in ended:
            asked[str(call_id)] = call_of(each.get("name") or kind, each.get("arguments", each.get("action", "")))
        if kind == "mcp_approval_request":
            asked[str(each.get("id"))] = call_of(each.get("name"), each.get("arguments", ""))
    if asked:
        return waiting((name, prompt, YES_OR_NO) for name, prompt in asked.items())
    return COMPLETED if not ended and items[-1].get("role") == "assistant" else RUNNING


class StatewardSnapshots(Connected):
    """Keeps the workspaces of the SDK's sandboxes: each snapshot is a version of the thread with the snapshot's id.

    It is the client of the SDK's own `RemoteSnapshot`: bind it in `Dependencies` under the key that
    `RemoteSnapshotSpec(client_dependency_key=…)` names. The tar of a workspace is unpacked into a tree in a stream, so
    an upload sends only what changed. Of modes only execution is kept.

    `rules` limits what is taken; None = everything, up to 200,000 files and 2 GiB. Further arguments are those of
    `StatewardSession`.
    """

    def __init__(
        self,
        *,
        client: AsyncClient | None = None,
        target: str | None = None,
        namespace: str = "default",
        rules: Rules | None = None,
        ttl: Duration | None = None,
        retention: Retention | None = None,
        **options: Any,
    ) -> None:
        super().__init__(client, target, namespace, options, ttl=ttl, retention=retention)
        self._rules = rules

    async def upload(self, snapshot_id: str, data: IOBase) -> None:
        """Saves the workspace in a tar as the newest version. Raises WorkspaceRefused for a tar that is damaged."""
        await settle(self._save(self._client.thread(name_for(snapshot_id)), data))

    async def _save(self, thread: AsyncThread, data: Any) -> None:
        taken = await thread.trees.import_tar(data, self._rules)
        await thread.apply([], workspace=taken, create=self._made_with)

    async def download(self, snapshot_id: str) -> IOBase:
        """Returns the newest workspace as a tar. A large one lies in a temporary file that has no name."""
        found = SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115  the SDK closes it
        try:
            await self._client.thread(name_for(snapshot_id)).trees.export_tar(cast("IO[bytes]", found))
            found.seek(0)
        except BaseException:
            found.close()
            raise
        return found

    async def exists(self, snapshot_id: str) -> bool:
        """Returns whether there is a workspace to be downloaded."""
        try:
            await self._client.thread(name_for(snapshot_id)).trees.list(depth=1)
        except (ThreadNotFound, VersionNotFound, VersionPruned):
            return False
        except InvalidField as error:
            if error.field != "version":
                raise
            return False
        return True
