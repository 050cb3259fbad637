"""Cached reads: the result of a tool is stored under the hash of its arguments, and returned again."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any, TypedDict

from stateward import values
from stateward._operations.effects import TERM_S, Claim, Daemon, Plan
from stateward._operations.steps import Operation, ThreadRef, check_options
from stateward._operations.tools import ToolCall, Tools
from stateward.arguments import text
from stateward.durations import Duration, span
from stateward.effects import EffectState
from stateward.errors import ClaimLost
from stateward.v1.lease_pb2 import Holder

CACHE_ANCHOR = "cache/"


class CacheOptions(TypedDict, total=False):
    """How the result of a read is cached. Every option has a default."""

    max_age: Duration | None
    """How old a cached result may be. None = any age."""
    term: Duration
    """How long the claim lives unless it is renewed; then another caller may read. The default is 10 s."""
    wait: Duration | None
    """How long to wait while another caller reads; then this caller reads too. None = 30 s, or 5 s more than `term` if
    that is longer."""


class CachePlan:
    """A read whose result is stored under the hash of its arguments."""

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
                "wait": options.get("wait"),
                "retry_failed": True,
                "durability": "committed",  # a read may be repeated
            },
        )


def hash_arguments(tool: str, args: Any) -> str:
    """Returns a key for a tool's arguments. The order of keys in JSON makes no difference."""
    text(tool, "tool")
    encoded = values.encode(args, f"arguments of {tool}")
    data = encoded.data
    if encoded.media_type == values.JSON:
        data = json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(b"\0".join([tool.encode(), encoded.media_type.encode(), data])).hexdigest()


def cached(ref: ThreadRef, holder: Holder, plan: CachePlan, tools: Tools, daemon: Daemon) -> Operation[Any]:
    """Returns the cached result, or reads and caches it."""
    claim = Claim(ref, holder, plan.plan, daemon)
    if (yield from claim.begin(plan.max_age)) is EffectState.DONE:
        return claim.recorded.value
    if not claim.token:  # another caller is still reading after `wait`
        outcome = yield from tools.call(plan.call, _nothing, plan.plan.term_s)
    else:
        outcome = yield from claim.call(tools, plan.call)
        if outcome.error is not None:
            yield from claim.give_back(EffectState.NEW)
        else:
            with suppress(ClaimLost):  # another caller has read it since
                yield from claim.record(outcome.value, otherwise=EffectState.NEW)
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def _nothing() -> Operation[None]:
    yield from ()
