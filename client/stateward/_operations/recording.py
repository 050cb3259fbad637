"""Operations on effects without a claim: results that are put, and lists."""

from __future__ import annotations

from collections.abc import Iterable

from stateward._operations import threads
from stateward._operations.steps import Call, Operation, ThreadRef, new_request_id
from stateward.effects import Effect, RecordedEffect
from stateward.models import Durability, choice_number
from stateward.options import ThreadOptions
from stateward.v1 import effect_service_pb2 as service


def put_effects(
    ref: ThreadRef,
    effects: Iterable[Effect],
    durability: Durability | str | None,
    create: ThreadOptions | None,
) -> Operation[int]:
    """Records results; how many were not there before."""
    request = ref.about(
        service.PutEffectsRequest,
        effects=[each.to_proto() for each in effects],
        request_id=new_request_id(),
        durability=choice_number(Durability, durability),
        lease_token=ref.held.for_call(),
        create=None if create is None else create.to_proto(),
    )
    response: service.PutEffectsResponse = yield Call("PutEffects", request)
    if response.durability < request.durability:
        yield from threads.await_archived(ref, threads.entry_of(ref, response, response.sequence))
    return response.written


def list_effects(
    ref: ThreadRef, anchor: str | None, names: Iterable[str], key: str, with_values: bool
) -> service.ListEffectsRequest:
    """The request for the first page."""
    if isinstance(names, str):
        raise TypeError("names takes a list of names, not one name")
    return ref.about(
        service.ListEffectsRequest,
        anchor=anchor or "",
        all_anchors=anchor is None,
        names=names,
        key=key,
        without_values=not with_values,
    )


def read_effects(request: service.ListEffectsRequest) -> Operation[list[RecordedEffect]]:
    """The next page; moves the request's page token on, and leaves it empty at the end."""
    page: service.ListEffectsResponse = yield Call("ListEffects", request)
    request.page_token = page.next_page_token
    return list(map(RecordedEffect.from_proto, page.effects))
