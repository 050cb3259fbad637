"""The danger: commands of docs/keys.md that no service and no daemon takes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.keys.conftest import Service
from tests.keys.test_keys_in_services import made
from tests.pages.blocks import blocks

from stateward_sidecar.settings import load_settings
from stateward_sidecar.storage.keysource import open_key

PAGE = "docs/keys.md"


def commands() -> list[list[str]]:
    """The commands of the page, as words."""
    lines = [line for block in blocks(PAGE) if block.kind == "shell" for line in block.text.splitlines()]
    return [words for line in lines if (words := shlex.split(line))]


def test_services_take_the_commands(
    short: Path, aws: Service, vault: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command that makes a wrapped key file makes one, in the order of the page; each daemon has its source."""
    for name, value in {**aws.environment, **vault.environment}.items():
        monkeypatch.setenv(name, value)
    made("new", short / "key")
    kinds, count = set(), 0
    for words in commands():
        words = [word.replace("/etc/stateward", str(short)).replace("awskms:alias/agents", aws.given) for word in words]
        if words[0] == "stateward":
            (short / "wrapped.key").unlink() if words[2] == "new" and (short / "wrapped.key").exists() else None
            if words[2] == "wrap" and "awskms" in words[6]:
                (short / "wrapped.key").unlink()
                words = words[: words.index("--archive")]
            made(*words[2:])
            count += 1
        else:
            assert words[0] == "stateward-sidecar"
            settings, _ = load_settings(words[1:], {"HOME": str(short)})
            kinds.add(settings.key.kind)
            if settings.key.path is not None:
                assert open_key(settings.key).archive_id
    assert kinds == {"awskms", "vault", "command"}
    assert count == 4


def test_the_rule_is_one() -> None:
    """The policy is JSON, and asks for the context that the daemon sends."""
    (text,) = (block.text for block in blocks(PAGE) if block.kind == "json")
    (condition,) = json.loads(text)["Condition"]["StringEquals"].items()
    assert condition[0] == "kms:EncryptionContext:stateward-archive"
    assert len(bytes.fromhex(condition[1])) == 16
