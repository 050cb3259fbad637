"""An access file with limits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOKEN, OPERATOR = "agent" * 8, "operator" * 4
LIMITED = "team-a"


def limited(
    directory: Path,
    *,
    limits: Mapping[str, int] | None = None,
    namespaces: Mapping[str, Mapping[str, Any]] | None = None,
    agent: str = "*/*",
) -> Path:
    """A file of an agent with limits, an operator without, and namespaces with limits. Written in place if it is
    there."""
    lines = [_principal("agent", TOKEN, f'["read,write,signal,delete {agent}"]')]
    if limits:
        lines.append("limits = { " + ", ".join(f"{key} = {value}" for key, value in limits.items()) + " }")
    lines.append(_principal("operator", OPERATOR))
    for name, told in (namespaces or {}).items():
        lines += ["[[namespace]]", f"name = {json.dumps(name)}"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in told.items()]
    path = directory / "access.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _principal(name: str, token: str, grants: str = '["admin */*", "read,write,signal,delete */*"]') -> str:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return "\n".join(["[[principal]]", f'name = "{name}"', f'token_sha256 = "{digest}"', f"grants = {grants}"])
