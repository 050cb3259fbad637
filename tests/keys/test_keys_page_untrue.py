"""The danger: commands of docs/keys.md that no service and no daemon takes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.keys.conftest import Service
from tests.keys.test_keys_in_services import key_of, made
from tests.pages.blocks import blocks

from stateward.testing import run_daemon
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
    with run_daemon(short / "data", key_file=short / "key", archive=f"file://{short}/bucket") as daemon:
        old_id = key_of(daemon)
        with daemon.client() as client:
            client.thread("t").append("log", 1, durability="archived")
        daemon.stop()
    kinds, count = set(), 0
    for words in commands():
        for place, own in (
            ("/etc/stateward", str(short)), ("awskms:alias/agents", aws.given),
            ("s3://my-bucket/agents", f"{short}/bucket"), ("0123456789abcdef", old_id),
            ("/var/lib/stateward", str(short)), ("team-a", "default"),
        ):  # fmt: skip
            words = [word.replace(place, own) for word in words]
        if words[0] == "stateward":
            if words[2] == "new" and words[3].endswith("wrapped.key"):  # the page makes it in two ways
                (short / "wrapped.key").unlink(missing_ok=True)
            if words[2] == "wrap" and "awskms" in words[6]:
                (short / "wrapped.key").unlink()
                words[3] = words[3].replace("key", "next")
            if "--data-dir" in words:  # data of another daemon
                words = [word.replace(f"{short}/data", f"{short}/alone") for word in words]
                if not (short / "alone").exists():
                    with run_daemon(short / "alone", key_file=short / "key") as daemon, daemon.client() as client:
                        client.thread("t").append("log", 1)
            if words[2] == "retire" and words[3].startswith("--"):
                words.append("--force")  # in place of 20 minutes
            count += 1
            if words[2] == "rekey":
                with run_daemon() as daemon, daemon.client() as client:
                    client.thread(words[3]).append("log", 1)
                    made(*words[2:], "--target", daemon.target)
                continue
            made(*words[2:])
        else:
            assert words[0] == "stateward-sidecar"
            words = [f"file://{word}" if word == f"{short}/bucket" else word for word in words]
            settings, _ = load_settings(words[1:], {"HOME": str(short)})
            kinds.add(settings.key.kind)
            if settings.key.path is not None:
                assert open_key(settings.key).archive_id
    assert kinds == {"awskms", "vault", "command"}
    assert count == 17


def test_the_rule_is_one() -> None:
    """The policy is JSON, and asks for the context that the daemon sends."""
    (text,) = (block.text for block in blocks(PAGE) if block.kind == "json")
    (condition,) = json.loads(text)["Condition"]["StringEquals"].items()
    assert condition[0] == "kms:EncryptionContext:stateward-archive"
    assert len(bytes.fromhex(condition[1])) == 16
