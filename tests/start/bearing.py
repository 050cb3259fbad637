"""Whom the daemon takes the bearers of tokens for, asked inside of the test's process, and the clock that it sees."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.start.issuer import BOTH, access_text

from stateward_sidecar.service.admission.callers import Callers


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def callers_of(directory: Path, keys: bytes = BOTH, rules: str = "") -> Callers:
    """Those of an issuer whose keys are in a file."""
    (directory / "jwks.json").write_bytes(keys)
    return Callers(None, write(directory / "access.toml", access_text(directory / "jwks.json", rules=rules)))


def bearing(given: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {given}")]


def who(callers: Callers, given: str) -> str:
    return callers.identify(bearing(given)).principal.name


def fault_of(verb: Callable[..., Any], *arguments: Any) -> Any:
    """The error of a call; else what it returns."""
    try:
        return verb(*arguments)
    except Exception as error:  # noqa: BLE001  (looked at by the caller)
        return error


def is_agent(callers: Callers, given: str) -> bool:
    return bool(fault_of(who, callers, given) == "agent")


def when(check: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Waits until a check says yes."""
    end = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return found


class Clock:
    """The clock of the daemon, and what it makes of an issuer's keys as time passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        for module in ("keysets", "callers", "bearers"):
            monkeypatch.setattr(f"stateward_sidecar.service.admission.{module}.monotonic", lambda: self.now_s)

    def passes(self, callers: Callers, seconds: float) -> None:
        self.now_s += seconds
        callers._look()
        settle(callers)


def settle(callers: Callers) -> None:
    """Waits for the reads of keys that are under way. The daemon looks at what they found."""
    sets = callers._bearers._sets.values()  # type: ignore[union-attr]
    when(lambda: all(keys._outcome is not None or not keys.is_reading for keys in sets))
    callers._look()
