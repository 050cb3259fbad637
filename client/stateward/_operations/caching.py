"""Operations on reads: what a tool returned before, found again by the hash of its arguments."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypedDict

from stateward import values
from stateward._operations.effects import TERM_S, WAIT_S, Claim, Plan
from stateward._operations.steps import Operation, ThreadRef, check_options
from stateward._operations.tools import ToolCall, Tools, spread
from stateward.durations import Duration, span
from stateward.effects import EffectState
from stateward.errors import ClaimLost
from stateward.v1.lease_pb2 import Holder

CACHE_ANCHOR = "cache/"


class CacheOptions(TypedDict, total=False):
    """How a read is kept. Every option has a default."""

    max_age: Duration | None
    """How old a kept result may be. None = any age."""
    term: Duration
    """How long the claim lives unless it is renewed: then another caller may read. The default is 60 s."""
    wait: Duration
    """How long to wait while another caller reads; then this caller reads, too. The default is 30 s."""


class CachePlan:
    """A read that is kept under the hash of its arguments."""

    def __init__(self, tool: str, args: Any, call: ToolCall, options: CacheOptions) -> None:
        check_options(options, CacheOptions, "cached")
        max_age = options.get("max_age")
        self.max_age = None if max_age is None else span(max_age, "max_age")
        self.call = call
        self.plan = Plan(
            hash_arguments(tool, args),
            lambda _key: call,
            {
                "anchor": CACHE_ANCHOR + tool,
                "name": tool,
                "term": options.get("term", TERM_S),
                "wait": options.get("wait", WAIT_S),
                "retry_failed": True,
                "durability": "committed",  # a read may be made twice
            },
        )


def plan_read(tool: str, args: Any, fn: Callable[..., Any], options: CacheOptions) -> CachePlan:
    """What `fn` returns for these arguments."""
    return CachePlan(tool, args, spread(fn, args), options)


def hash_arguments(tool: str, args: Any) -> str:
    """A key for a tool's arguments: the same for the same JSON, in whatever order its keys stand."""
    encoded = values.encode(args, f"arguments of {tool}")
    data = encoded.data
    if encoded.media_type == values.JSON:
        data = json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(b"\0".join([tool.encode(), encoded.media_type.encode(), data])).hexdigest()


def cached(ref: ThreadRef, holder: Holder, plan: CachePlan, tools: Tools, target: str = "") -> Operation[Any]:
    """What was read before, or what is read now."""
    claim = Claim(ref, holder, plan.plan, target)
    if (yield from claim.begin(plan.max_age)) is EffectState.DONE:
        return claim.recorded.value
    if not claim.token:  # whoever reads it takes too long
        outcome = yield from tools.call(plan.call, _nothing, plan.plan.term_s)
    else:
        outcome = yield from claim.call(tools, plan.call)
        if outcome.error is not None:
            yield from claim.give_back(EffectState.NEW)
        else:
            with suppress(ClaimLost):  # somebody else has read it since
                yield from claim.record(outcome.value, otherwise=EffectState.NEW)
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def _nothing() -> Operation[None]:
    yield from ()
