"""The danger: a sandbox of the OpenAI Agents SDK that is resumed has other files than it had, or each snapshot costs as
much as the whole workspace."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path

import pytest

from stateward import AsyncClient
from stateward.errors import WorkspaceRefused
from stateward.testing import run_daemon

pytest.importorskip("agents.sandbox", reason="the extra openai-agents is not installed, or too old")
from agents.sandbox import Manifest, RemoteSnapshotSpec
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.sandbox.session.dependencies import Dependencies

from stateward.openai_agents import StatewardSnapshots


def test_a_sandbox_is_resumed(tmp_path: Path) -> None:
    """With files that a shell command made, changed and deleted, by another client, after its directory is gone."""

    async def run() -> None:
        with run_daemon() as daemon:
            async with StatewardSnapshots(target=daemon.target) as kept:
                boxes = UnixLocalSandboxClient(dependencies=Dependencies().bind_value("files", kept))
                spec = RemoteSnapshotSpec(client_dependency_key="files")
                box = await boxes.create(snapshot=spec, manifest=Manifest(), options=None)
                async with box:
                    await box.exec("mkdir -p d; seq 100000 > d/big; echo one > a; ln -s a link; chmod +x a", shell=True)
                    await box.stop()
                    await box.exec("echo two > b; rm link", shell=True)
                state = box.state
                assert await kept.exists(state.snapshot.id)
                assert not await kept.exists("another")
                await boxes.delete(box)
            async with StatewardSnapshots(target=daemon.target) as kept, AsyncClient(daemon.target) as client:
                boxes = UnixLocalSandboxClient(dependencies=Dependencies().bind_value("files", kept))
                box = await boxes.resume(state)
                async with box:
                    told = await box.exec("ls; ./a 2>&1; wc -l < d/big; cat b; test -x a && echo runs", shell=True)
                    words = told.stdout.decode().split()
                    assert words[:3] == ["a", "b", "d"]
                    assert words[-3:] == ["100000", "two", "runs"]
                await boxes.delete(box)
                usage = await client.thread(state.snapshot.id).trees.usage()
                assert usage.trees >= 2
                assert usage.size_bytes < 1.2 * 588_895  # the large file was kept once

    asyncio.run(run())


def test_a_snapshot_that_is_cut_off_is_not_kept() -> None:
    """The one before stays the newest."""

    async def run() -> None:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            info = tarfile.TarInfo("./a")
            info.size = 5000
            tar.addfile(info, io.BytesIO(b"x" * 5000))
        with run_daemon() as daemon:
            async with StatewardSnapshots(target=daemon.target) as kept:
                assert not await kept.exists("s/1")
                await kept.upload("s/1", io.BytesIO(out.getvalue()))
                with pytest.raises(WorkspaceRefused):
                    await kept.upload("s/1", io.BytesIO(out.getvalue()[:3000]))
                found = await kept.download("s/1")
                with found, tarfile.open(fileobj=found, mode="r:*") as tar:  # type: ignore[call-overload]
                    assert [(each.name, each.size) for each in tar] == [("a", 5000)]

    asyncio.run(run())
