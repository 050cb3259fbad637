"""`thread.handoff` and `client.take_handoff`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from stateward import _handoff
from stateward._operations import new_request_id
from stateward._saving import SaveOptions
from stateward.handoff import Handoff
from stateward.models import Durability
from stateward.state import State

if TYPE_CHECKING:
    from stateward._sync import Client, Thread


class ThreadHandoff:
    """Methods of `Thread`."""

    def handoff(
        self,
        to: str,
        summary: str,
        *,
        pending_steps: Iterable[Any] = (),
        dependencies: Iterable[Any] = (),
        data: Any = None,
        sender: str | None = None,
        state: State | None = None,
        **options: Unpack[SaveOptions],
    ) -> Handoff:
        """Leaves the thread for another agent: one save as WAITING, with what it must know in the slot "handoff".

        With `state` what changed in it is saved along, compare-and-swap; without, the slot goes on top of whatever is
        the head. Then the lease of this handle is given back, if it holds one. `sender` is the client's `holder`.
        `durability="archived"` where an agent on another machine is to take it: this then returns when that can be.
        """
        thread = cast("Thread", self)
        name = sender if sender is not None else thread._client._identity.name or ""
        return thread._run(
            _handoff.hand_over(thread._ref, to, summary, pending_steps, dependencies, data, name, state, options)
        )


class ClientHandoffs:
    """Methods of `Client`."""

    @overload
    def take_handoff(
        self,
        thread: str,
        *,
        taker: str | None = None,
        wait: float = ...,
        durability: Durability | str | None = ...,
    ) -> Handoff: ...

    @overload
    def take_handoff(
        self,
        *,
        to: str,
        taker: str | None = None,
        wait: float = ...,
        durability: Durability | str | None = ...,
    ) -> Handoff | None: ...

    def take_handoff(
        self,
        thread: str | None = None,
        *,
        to: str | None = None,
        taker: str | None = None,
        wait: float = _handoff.WAIT_S,
        durability: Durability | str | None = None,
    ) -> Handoff | None:
        """Takes over a thread, or the one that was handed to `to` longest ago: then None where there is none.

        Of all who try exactly one gets it; for the others a thread is HandoffTaken. NoHandoff where it is not handed to
        anybody. `taker` names who takes, so that it gets the same again after a crash; without one that is the client's
        `holder`, and without that something random. By `to` that works until its first save, by thread also later.

        With an archive it is taken when that is archived, so that no other machine finds it open after this one is
        lost: NotArchivedYet where that takes too long, and it is open again. `durability="committed"` saves that wait.

        `wait` is for how many seconds who handed it over may still hold the thread: LeaseHeld, or NotOwner where it is
        on another machine. By `to` such a one is passed over for others.

        By `to` only threads are found that this sidecar has on its disk. What was handed over on another machine is
        taken by its thread's name, which its sender has to tell.
        """
        client = cast("Client", self)
        known = taker or client._identity.name
        taking = _handoff.Taking.of(known or f"unnamed-{new_request_id()}", wait, durability)
        refer = _refer(client)
        if (thread is None) == (to is None):
            raise TypeError("take_handoff takes a thread or to=")
        if thread is not None:
            return client._run(_handoff.take(refer(thread), taking))
        assert to is not None
        request = _handoff.waiting(client.namespace, taken_too=known is not None)
        return client._run(_handoff.take_any(refer, request, to, taking))

    def handoffs(self, to: str | None = None) -> Iterator[Handoff]:
        """What is handed over and not taken, to one agent or to all; the newest first.

        Only of threads that this sidecar has on its disk: not what was handed over on another machine.
        """
        client = cast("Client", self)
        read = partial(_handoff.read_open, _refer(client), to)
        return client._read_list(read, _handoff.waiting(client.namespace))


def _refer(client: Client) -> Any:
    return lambda name: client.thread(name, migrations=False)._ref
