"""Calling somebody's function: what it is given, what became of it, and keeping its claim alive meanwhile."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from stateward._operations.steps import Operation
from stateward.effects import EffectState
from stateward.errors import EffectUncertain

KEY_PARAMETER = "idempotency_key"
# So often within its term a claim is renewed: two renewals may fail.
RENEWALS_PER_TERM = 3


@dataclass(frozen=True)
class ToolCall:
    """A function and what it is called with."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        try:
            return self.fn(*self.args, **self.kwargs)
        except StopIteration as error:  # no future can hold one: whoever awaits the call would wait for ever
            raise RuntimeError("the tool raised StopIteration") from error

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)

    def takes_key(self) -> bool:
        """Whether it has a parameter for the idempotency key that was not given."""
        return KEY_PARAMETER in (_parameters(self.fn) or {}) and KEY_PARAMETER not in self.kwargs

    def with_key(self, key: str) -> ToolCall:
        """The same, given the idempotency key where it takes it by name."""
        return ToolCall(self.fn, self.args, {**self.kwargs, KEY_PARAMETER: key}) if self.takes_key() else self


def keyed(fn: Callable[..., Any], what: str) -> Callable[[str], ToolCall]:
    """How `fn` is called with an idempotency key: by name where it has such a parameter, else as its only required
    argument, else without, as where nothing is known of it. TypeError where it wants more, or is no function."""
    require_callable(fn, what)
    parameters = (_parameters(fn) or {}).values()
    if any(each.name == KEY_PARAMETER for each in parameters):
        return lambda key: ToolCall(fn, (), {KEY_PARAMETER: key})
    required = [each for each in parameters if each.default is each.empty and each.kind not in _VARIADIC]
    if len(required) > 1 or any(each.kind is each.KEYWORD_ONLY for each in required):
        raise TypeError(f"{what} may take the idempotency key and nothing else; give the rest with a lambda")
    return (lambda key: ToolCall(fn, (key,))) if required else (lambda _key: ToolCall(fn))


def spread(fn: Callable[..., Any], args: Any) -> ToolCall:
    """`fn` called with arguments that stand in one value; one that is known to take nothing is called so."""
    require_callable(fn, "fn")
    parameters = _parameters(fn)
    if parameters is not None and not parameters:
        return ToolCall(fn)
    if isinstance(args, Mapping):
        return ToolCall(fn, (), args)
    return ToolCall(fn, tuple(args) if isinstance(args, (list, tuple)) else (args,))


def bind_arguments(fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[ToolCall, dict[str, Any]]:
    """The call, and its arguments by name, however they were given and with defaults filled in."""
    bound = inspect.signature(fn).bind(*args, **kwargs)
    bound.apply_defaults()
    return ToolCall(fn, args, kwargs), dict(bound.arguments)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """None = not known, as of some functions written in C."""
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return None


def require_callable(fn: object, what: str) -> None:
    """TypeError for what cannot be called."""
    if not callable(fn):
        raise TypeError(f"{what} takes a function, not {fn!r}")


@dataclass(frozen=True)
class Outcome:
    """What became of a call: DONE with a value, or another state with the error."""

    state: EffectState
    value: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, error: Exception) -> Outcome:
        is_known = not isinstance(error, EffectUncertain)
        return cls(EffectState.FAILED if is_known else EffectState.UNCERTAIN, error=error)


class Tools(Protocol):
    """Calls functions under a claim: `renew()` begins its term anew, and is called every `interval_s` seconds.

    A renewal that fails is followed by the next one, unless the claim is lost: completing it will tell. So it outlives
    a daemon that is away for less than its term.

    KeyboardInterrupt, SystemExit and cancellation pass: nobody knows what the tool did, and the claim stays as it is.
    """

    def call(self, tool: ToolCall, renew: Callable[[], Operation[None]], interval_s: float) -> Operation[Outcome]:
        """Calls it."""
        ...
