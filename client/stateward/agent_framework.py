"""Checkpoints of workflows, and histories of agents, of Microsoft's Agent Framework in Stateward. Needs the extra
`agent-framework`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from typing import Any

import msgspec
from agent_framework import HistoryProvider, Message, WorkflowCheckpoint
from agent_framework._sessions import filter_new_messages
from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value
from agent_framework.exceptions import WorkflowCheckpointException

from stateward._answering import Answered, find_answers
from stateward._async.client import AsyncClient
from stateward._async.thread import AsyncThread
from stateward._connected import Connected
from stateward._keeping import find_place, keep, kept
from stateward._naming import name_for, text_of
from stateward._operations.steps import thread_error
from stateward._settling import settle
from stateward._spreading import Spreader, decoded, is_spread, logs_of
from stateward._telling import COMPLETED, RUNNING, YES_OR_NO, Told, call_of, prompt_of, waiting
from stateward.changes import Append, Change, SetSlot
from stateward.durations import Duration
from stateward.errors import ThreadNotFound, UidMismatch, VersionMismatch, VersionNotFound, VersionPruned
from stateward.models import Checkpoint
from stateward.options import Retention
from stateward.state import State
from stateward.values import RawValue

__all__ = ["StatewardCheckpointStorage", "StatewardHistoryProvider"]

MESSAGES = "messages"
SCHEMAS: dict[Any, str] = {bool: "boolean", str: "string", int: "integer", float: "number"}
"""JSON's names of the types that a request may ask for."""
ID, WORKFLOW, TIME = "checkpoint_id", "workflow_name", "timestamp"
REQUESTS = "pending_request_info_events"
SLOTS = tuple(field.name for field in fields(WorkflowCheckpoint))
SPREAD = ("messages", "state")
"""The slots that are spread over logs if they are large."""
PIECES = "checkpoint_pieces"
"""Label of versions that have pieces of a large checkpoint, before the version that has the checkpoint."""


class StatewardCheckpointStorage(Connected):
    """The checkpoints of one piece of work, such as an order or a conversation, as versions of a thread of Stateward.

    It implements the framework's `CheckpointStorage`. Every field of a checkpoint is a slot, and the daemon stores only
    what differs from the checkpoint before. A checkpoint is durable when `save` returns. Any number of processes may
    save to one thread: a checkpoint is always whole, and none replaces another one.

    `thread` is the thread's name. `retention` says which checkpoints are kept; None = all, until they are deleted.
    `ttl` says how long after its last checkpoint the thread is deleted, None = never. Both are used when the first
    checkpoint makes the thread. The framework pickles values that are no JSON. Only its own
    types, those of `register_checkpoint_type` and `allowed_checkpoint_types` ("module:qualname") can be saved and
    loaded.

    `client` is an AsyncClient that you keep; without it the storage makes one from `target`, `namespace` and the
    further options of `stateward.AsyncClient`, and `close` closes it.
    """

    def __init__(
        self,
        thread: str,
        *,
        allowed_checkpoint_types: Iterable[str] = (),
        ttl: Duration | None = None,
        retention: Retention | None = None,
        client: AsyncClient | None = None,
        target: str | None = None,
        namespace: str = "default",
        **options: Any,
    ) -> None:
        super().__init__(client, target, namespace, options, ttl=ttl, retention=retention)
        self._name = name_for(thread)
        self._allowed_types = frozenset(allowed_checkpoint_types)
        self._given: Answered | None = None  # the answers that a workflow was given
        self._spreader = Spreader(self._client)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Saves a checkpoint, in place of one with the same id, and returns the id.

        Raises WorkflowCheckpointException if the checkpoint has types that could not be loaded. A save that is
        cancelled comes to its end first. Raises UidMismatch for a checkpoint that continues another one if somebody
        deleted the thread since: it does not come back.
        """
        return await settle(self._save(checkpoint, self._encode(checkpoint)))

    async def _save(self, checkpoint: WorkflowCheckpoint, encoded: dict[str, RawValue]) -> str:
        is_continued = checkpoint.previous_checkpoint_id is not None
        large = {name: encoded[name] for name in SPREAD}
        edits: list[Change] = [SetSlot(name, encoded[name]) for name in SLOTS if name not in SPREAD]
        given, asked = self._given, map(name_for, checkpoint.pending_request_info_events)
        if given is not None and given.decisions.keys().isdisjoint(asked):
            edits += given.edits
        else:
            given = None
        made = await self._spreader.apply(
            self._continued(self._name) if is_continued else self._thread,
            large,
            edits,
            piece_labels={PIECES: name_for(checkpoint.checkpoint_id)},
            ack=[] if given is None else [given.signal],
            labels={ID: name_for(checkpoint.checkpoint_id)},
            attributes={WORKFLOW: name_for(checkpoint.workflow_name), TIME: checkpoint.timestamp},
            create=self._made_with,
            **_status_of(checkpoint),
        )
        self._work_on(self._name, made.uid)
        if given is not None:
            self._given = None
        return checkpoint.checkpoint_id

    async def responses(self) -> dict[str, Any] | None:
        """Returns what somebody has answered to the requests of the workflow, by their ids; None = answers are missing,
        or nothing is asked.

            responses = await storage.responses()
            if responses is not None:
                latest = await storage.get_latest(workflow_name="trip")
                await workflow.run(responses=responses, checkpoint_id=latest.checkpoint_id)

        An approval is True, a rejection False. Any other answer is its value as JSON. If the request asks for another
        type, make it before you give it to the workflow. The first checkpoint without these requests acknowledges the
        answer. If the workflow fails before, this returns it again.
        """
        found = await settle(find_answers(self._continued(self._name), [REQUESTS]))
        if found is None:
            return None
        self._given = found
        asked = {name_for(name): name for name in kept(found.state.slots[REQUESTS])}
        return {asked[name]: each.value for name, each in found.decisions.items() if name in asked}

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Returns a checkpoint. Raises WorkflowCheckpointException if there is none with this id."""
        with suppress(ThreadNotFound):
            labels = {ID: name_for(checkpoint_id)}
            async for state in self._thread.checkpoints.states(labels=labels, slots=SLOTS, page_size=1):
                self._work_on(self._name, state.checkpoint.uid if state.checkpoint else "")
                return await self._decode(state)  # the newest one
        raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Returns the checkpoints of a workflow, in the order in which they were saved."""
        versions = {made.version for made in await self._list(workflow_name)}
        if not versions:
            return []
        states = self._thread.checkpoints.states(where={WORKFLOW: name_for(workflow_name)}, slots=SLOTS)
        return [await self._decode(state) async for state in states if state.version in versions][::-1]

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Returns the ids of the checkpoints of a workflow, in the order in which they were saved. Reads no states."""
        return [await self._id_of(made) for made in await self._list(workflow_name)]

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Returns the checkpoint with the newest timestamp; None = there is none. Reads the state of no other one."""
        found = await self._list(workflow_name)
        newest = max(found, key=lambda made: datetime.fromisoformat(str(made.attributes[TIME])), default=None)
        return await self.load(await self._id_of(newest)) if newest else None

    async def delete(self, checkpoint_id: str) -> bool:
        """Removes a checkpoint, and with the last one the thread and its key. Returns whether there was one."""
        return await settle(self._delete(checkpoint_id))

    async def _delete(self, checkpoint_id: str) -> bool:
        while True:
            thread = self._thread
            try:
                head = await thread.checkpoints.get()
                versions = [
                    made.version for label in (ID, PIECES)
                    async for made in thread.checkpoints.list(labels={label: name_for(checkpoint_id)})
                ]  # fmt: skip
                if not versions:
                    return False
                if (await thread.info()).retained_versions > len(versions):
                    await thread.prune(versions=versions, move_heads=True, expected_version=head)
                    return True
                is_there = await thread.delete(expected_version=head)
                self._spreader.forget(self._name)
                self._work_on(self._name, "")
                return is_there
            except ThreadNotFound:
                return False
            except (UidMismatch, VersionMismatch, VersionNotFound, VersionPruned):
                continue  # somebody saved or deleted a checkpoint meanwhile, or the thread

    async def _list(self, workflow_name: str) -> list[Checkpoint]:
        """The versions with the checkpoints of a workflow. Of a checkpoint that was saved again, only the last one."""
        found, wanted = dict[str, Checkpoint](), name_for(workflow_name)
        with suppress(ThreadNotFound):
            async for made in self._thread.checkpoints.list(page_size=1000):  # newest first
                if ID in made.labels:
                    found.setdefault(made.labels[ID], made)
        return [made for made in found.values() if made.attributes[WORKFLOW] == wanted][::-1]

    async def _id_of(self, made: Checkpoint) -> str:
        known = text_of(made.labels[ID])
        if known is None:
            known = kept((await self._thread.hydrate(made, slots=[ID])).slots[ID])
        return known

    @property
    def _thread(self) -> AsyncThread:
        """A handle that knows the thread by its name only."""
        return self._client.thread(self._name)

    def _encode(self, checkpoint: WorkflowCheckpoint) -> dict[str, RawValue]:
        value = checkpoint.to_dict()
        try:
            encoded = self._checked(value)
        except Exception as error:
            place = find_place(value, "checkpoint", self._is_faulty)
            raise WorkflowCheckpointException(
                f"checkpoint {checkpoint.checkpoint_id} is not saved: {place} cannot be kept: {error}"
            ) from error
        return {name: keep(encoded[name], name) for name in SLOTS}

    def _checked(self, value: Any) -> Any:
        encoded = encode_checkpoint_value(value)
        decode_checkpoint_value(encoded, allowed_types=self._allowed_types)
        return encoded

    def _is_faulty(self, value: Any) -> bool:
        try:
            self._checked(value)
        except Exception:  # noqa: BLE001  pickle calls what a class defines
            return True
        return False

    async def _decode(self, state: State) -> WorkflowCheckpoint:
        encoded = {name: kept(state.slots[name]) for name in SLOTS if name in state.slots}
        if is_spread(state, SPREAD):
            read = await self._thread.hydrate(state.checkpoint, slots=SPREAD, logs=logs_of(SPREAD))
            for name, value in self._spreader.read(self._name, read, SPREAD).items():
                encoded[name] = kept(decoded(value, name))
        return WorkflowCheckpoint.from_dict(decode_checkpoint_value(encoded, allowed_types=self._allowed_types))


def _status_of(checkpoint: WorkflowCheckpoint) -> Told:
    """What a checkpoint tells: a workflow is over if no message is on its way and nobody is asked. If messages are on
    their way, it works, whether or not it has asked something, too."""
    if any(checkpoint.messages.values()):
        return RUNNING
    asked = checkpoint.pending_request_info_events
    if not asked:
        return COMPLETED
    return waiting((name, *_question_of(event)) for name, event in asked.items())


def _question_of(event: Any) -> tuple[str, Any]:
    """Prompt and schema of a request."""
    kind = SCHEMAS.get(getattr(event, "response_type", None))
    return prompt_of(getattr(event, "data", None)), None if kind is None else {"type": kind}


def _status_after(messages: Sequence[Message]) -> Told:
    """What the messages of a run tell: it is over if the last one is of the assistant and asks for nothing."""
    asked = {
        str(part.id): call_of(part.function_call.name, part.function_call.arguments)
        for message in messages for part in message.contents
        if part.type == "function_approval_request" and part.function_call is not None
    }  # fmt: skip
    if asked:
        return waiting((name, prompt, YES_OR_NO) for name, prompt in asked.items())
    last = messages[-1]
    calls = any(part.type == "function_call" for part in last.contents)
    return COMPLETED if last.role == "assistant" and not calls else RUNNING


class StatewardHistoryProvider(Connected, HistoryProvider):
    """Keeps the messages of each session in a log of a thread of Stateward. The session's id is the thread's name.

    A run sends its new messages, which are durable when it returns. Any number of processes may use one session: none
    of their messages is lost, and all see one order. `provider` are the options of the framework's `HistoryProvider`.

    `ttl` says how long after its last message a session is deleted, None = never. `retention` says which versions are
    kept, None = all; the newest one has all messages. Both are used when the first message makes the thread.

    `client` is an AsyncClient that you keep; without it the provider makes one from `target`, `namespace` and the
    options of `stateward.AsyncClient` in `options`, and `close` closes it.
    """

    def __init__(
        self,
        source_id: str = "stateward_history",
        *,
        ttl: Duration | None = None,
        retention: Retention | None = None,
        client: AsyncClient | None = None,
        target: str | None = None,
        namespace: str = "default",
        options: dict[str, Any] | None = None,
        **provider: Any,
    ) -> None:
        Connected.__init__(self, client, target, namespace, options or {}, ttl=ttl, retention=retention)
        HistoryProvider.__init__(self, source_id, **provider)

    async def get_messages(self, session_id: str | None, **kwargs: Any) -> list[Message]:
        """Returns the messages of a session, oldest first."""
        thread = self._of(session_id)
        read = await thread.hydrate(logs=[MESSAGES])
        self._work_on(thread.name, read.checkpoint.uid if read.checkpoint else "")
        return [Message.from_dict(kept(value)) for value in read.logs[MESSAGES]]

    async def save_messages(self, session_id: str | None, messages: Sequence[Message], **kwargs: Any) -> None:
        """Adds messages at the end. Those that the history ends with already are not added again.

        As with the framework's own providers, a caller may repeat the end of the history or all of it. So as many
        stored messages are read as there are given ones. Raises TypeError or ValueError for a message that is no JSON,
        with the place of what is wrong, and UidMismatch if somebody cleared the session since it was read here: late
        messages do not bring it back. A call that is cancelled comes to its end first.
        """
        await settle(self._save(self._of(session_id), messages))

    async def _save(self, thread: AsyncThread, messages: Sequence[Message]) -> None:
        while messages:
            read = await thread.hydrate(slots=[], logs={MESSAGES: len(messages)})
            known = self._uids.get(thread.name)
            if known and (read.checkpoint is None or read.checkpoint.uid != known):
                what = "the session was cleared since it was read here; read it again"
                raise thread_error(UidMismatch, thread.name, what, reason="UID_MISMATCH", expected_uid=known)
            stored = [Message.from_dict(kept(value)) for value in read.logs[MESSAGES]]
            added = _encode_new(stored, messages)
            try:
                if added:
                    edits = [Append(MESSAGES, added)]
                    made = await thread.apply(
                        edits, parent=read.checkpoint or 0, create=self._made_with, **_status_after(messages)
                    )
                    self._work_on(thread.name, made.uid)
                return
            except (VersionMismatch, ThreadNotFound, UidMismatch):
                continue  # somebody added messages meanwhile, or cleared the session

    async def clear(self, session_id: str | None) -> None:
        """Removes the history of a session: its thread with all versions and its key."""
        await settle(self._clear(self._of(session_id)))

    async def _clear(self, thread: AsyncThread) -> None:
        await thread.delete(missing_ok=True)
        self._work_on(thread.name, "")

    def _of(self, session_id: str | None) -> AsyncThread:
        return self._client.thread(name_for(session_id or "default"))


def _encode_new(stored: Sequence[Message], messages: Sequence[Message]) -> tuple[RawValue, ...]:
    """Returns the messages that are not stored yet."""
    try:
        added = filter_new_messages(stored, messages)
    except RecursionError as error:  # the framework compares by the texts of contents
        for each in messages:
            _encode_message(each)  # names the place
        raise ValueError(f"messages: {error}") from error
    return tuple(map(_encode_message, added))


def _encode_message(message: Message) -> RawValue:
    """Returns a message as the framework's own provider for files writes it. Raises TypeError or ValueError."""
    try:
        value = message.to_dict()
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{find_place(vars(message), 'message', _is_unwritable)}: {error}") from error
    try:
        return keep(_reduce(value), "message")
    except (TypeError, ValueError, RecursionError) as error:
        place = find_place(value, "message", _is_faulty)
        kind = ValueError if isinstance(error, RecursionError) else type(error)
        raise kind(str(error) if str(error).startswith("message") else f"{place}: {error}") from error


def _reduce(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True)


def _is_unwritable(value: Any) -> bool:
    """Whether the framework cannot write a part of a message: it is too deep, or contains itself."""
    try:
        Message("user", additional_properties={"part": value}).to_dict()
    except (TypeError, ValueError, RecursionError):
        return True
    return False


def _is_faulty(value: Any) -> bool:
    try:
        _reduce(value)
    except (TypeError, ValueError, RecursionError):
        return True
    return False
