"""Calls of a user's function: its arguments, its outcome, and the renewal of its claim while it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from stateward._operations.steps import Operation
from stateward.arguments import function
from stateward.effects import EffectState
from stateward.errors import EffectUncertain

KEY_PARAMETER = "idempotency_key"
# A claim is renewed this many times within its term, so that two renewals may fail.
RENEWALS_PER_TERM = 3


@dataclass(frozen=True)
class ToolCall:
    """A function and its arguments."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        try:
            return self.fn(*self.args, **self.kwargs)
        except StopIteration as error:  # a future cannot hold one: its awaiter would wait for ever
            raise RuntimeError("the tool raised StopIteration") from error

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)

    def with_key(self, key: str) -> ToolCall:
        """Returns the call with the idempotency key, if the function has a parameter for it that is not given yet."""
        if KEY_PARAMETER in self.kwargs or KEY_PARAMETER not in (_parameters(self.fn) or {}):
            return self
        return ToolCall(self.fn, self.args, {**self.kwargs, KEY_PARAMETER: key})


def keyed(fn: Callable[..., Any], what: str) -> Callable[[str], ToolCall]:
    """Returns a function that makes the call of `fn` from an idempotency key. `fn` gets the key by name, or else as its
    only required argument, or not at all if it requires nothing or its parameters are unknown. Raises TypeError if `fn`
    requires more, or cannot be called."""
    function(fn, what)
    parameters = (_parameters(fn) or {}).values()
    if any(each.name == KEY_PARAMETER for each in parameters):
        return lambda key: ToolCall(fn, (), {KEY_PARAMETER: key})
    required = [each for each in parameters if each.default is each.empty and each.kind not in _VARIADIC]
    if len(required) > 1 or any(each.kind is each.KEYWORD_ONLY for each in required):
        raise TypeError(f"{what} may take the idempotency key and nothing else; give the rest with a lambda")
    return (lambda key: ToolCall(fn, (key,))) if required else (lambda _key: ToolCall(fn))


def spread(fn: Callable[..., Any], args: Any) -> ToolCall:
    """Returns the call of `fn` with the arguments in `args`; without arguments if `fn` is known to take none."""
    function(fn, "fn")
    parameters = _parameters(fn)
    if parameters is not None and not parameters:
        return ToolCall(fn)
    if isinstance(args, Mapping):
        return ToolCall(fn, (), args)
    return ToolCall(fn, tuple(args) if isinstance(args, (list, tuple)) else (args,))


def bind_arguments(fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[ToolCall, dict[str, Any]]:
    """Returns the call, and all its arguments by name, including defaults."""
    bound = inspect.signature(fn).bind(*args, **kwargs)
    bound.apply_defaults()
    return ToolCall(fn, args, kwargs), dict(bound.arguments)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Returns the parameters; None = unknown, as for some functions written in C."""
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call: DONE with a value, or FAILED or UNCERTAIN with an error."""

    state: EffectState
    value: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, error: Exception) -> Outcome:
        is_known = not isinstance(error, EffectUncertain)
        return cls(EffectState.FAILED if is_known else EffectState.UNCERTAIN, error=error)


class Tools(Protocol):
    """Calls functions under a claim, and renews the claim with `renew()` every `interval_s` seconds.

    After a failed renewal the next one follows, so the claim survives a daemon that is away for less than the term.
    If the claim is lost, the renewals end, and the completion of the effect raises ClaimLost.

    KeyboardInterrupt, SystemExit and cancellation propagate: nobody knows what the tool did, and the claim stays.
    """

    def call(self, tool: ToolCall, renew: Callable[[], Operation[None]], interval_s: float) -> Operation[Outcome]:
        """Calls the tool and returns its outcome."""
