"""Stateward: durable state for agents.

    import stateward

    with stateward.open() as client:
        thread = client.thread("booking-42")
        state = thread.hydrate()
        state.slots["goal"] = {"city": "Paris"}
        thread.save(state, step=1)

Names are imported when they are first used: the daemon imports `stateward.v1` and must not pay for the client. The one
table of the names is `__init__.pyi`, which type checkers read too.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


@cache
def _homes() -> dict[str, str]:
    """The module of each public name."""
    import ast  # noqa: PLC0415  the daemon needs neither
    from pathlib import Path  # noqa: PLC0415

    table = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in table.body if isinstance(node, ast.ImportFrom)]
    return {name.name: str(node.module) for node in imports for name in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name == "__version__":
        from stateward._version import VERSION  # noqa: PLC0415

        return VERSION
    if name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_homes()[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(_homes())
