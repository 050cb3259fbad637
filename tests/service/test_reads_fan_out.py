"""The danger: a read that runs beside saves, prunes and deletions fails as if something were damaged, although nothing
is."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.daemon.inside import Inside, daemon_inside
from tests.daemon.wire import appends, refusal_of, sets

from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import checkpoint_service_pb2_grpc as cg
from stateward.v1 import thread_service_pb2 as t
from stateward.v1 import thread_service_pb2_grpc as tg
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.write_pb2 import WriteOptions

READERS, THREADS = 100, 6
# What may be said of a version that is pruned, or a thread that is deleted, while it is read.
FAIR = {"VERSION_PRUNED", "VERSION_NOT_FOUND", "THREAD_NOT_FOUND", "DEADLINE_EXCEEDED", "INVALID_FIELD"}


class Crowd:
    """Readers and those who change what they read, for some seconds, and until each reader could have one answer."""

    def __init__(self, target: str, seed: int, seconds: float) -> None:
        self._dice = random.Random(seed)
        self._channel = grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
        self._checkpoints: Any = cg.CheckpointServiceStub(self._channel)
        self._threads: Any = tg.ThreadServiceStub(self._channel)
        self._end = asyncio.get_running_loop().time() + seconds
        self.refused = Counter[str]()
        self.answers = 0

    async def run(self) -> None:
        """Until the time is over, and there are more answers than readers."""
        for number in range(THREADS):
            await self._save(f"t{number}")
        kinds = [self._read] * READERS + [self._change] * 8 + [self._prune, self._delete]
        await asyncio.gather(*(self._keep_on(kind) for kind in kinds))
        await self._channel.close()

    async def _keep_on(self, call: Callable[[], Awaitable[None]]) -> None:
        while asyncio.get_running_loop().time() < self._end or self.answers <= READERS:
            try:
                await call()
                self.answers += 1
            except grpc.aio.AioRpcError as error:
                self.refused[error.code().name if error.code() == grpc.StatusCode.CANCELLED else _reason(error)] += 1

    def _name(self) -> str:
        return f"t{self._dice.randrange(THREADS)}"

    async def _read(self) -> None:
        request = c.HydrateRequest(thread=self._name(), max_bytes=self._dice.choice([0, 4096]))
        if self._dice.random() < 0.5:
            request.version.CopyFrom(VersionRef(version=self._dice.randint(1, 40)))
        call = self._checkpoints.Hydrate(request, timeout=self._dice.choice([20, 20, 0.05]))
        if self._dice.random() < 0.1:
            await asyncio.sleep(self._dice.random() * 0.02)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            return
        await call

    async def _save(self, name: str) -> None:
        dice = self._dice
        diff = dice.choice(
            [appends("x" * 300), appends(os.urandom(20_000).hex()), sets("slot", "y" * dice.randint(1, 9_000))]
        )
        await self._checkpoints.Save(
            c.SaveRequest(thread=name, diff=diff, options=WriteOptions(request_id=os.urandom(8).hex())), timeout=20
        )

    async def _change(self) -> None:
        await self._save(self._name())

    async def _prune(self) -> None:
        await asyncio.sleep(0.05)
        await self._threads.PruneThread(t.PruneThreadRequest(thread=self._name(), keep_latest_per_branch=3), timeout=20)

    async def _delete(self) -> None:
        await asyncio.sleep(0.3)
        await self._threads.DeleteThread(t.DeleteThreadRequest(thread=self._name()), timeout=20)


def _reason(error: grpc.aio.AioRpcError) -> str:
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "DEADLINE_EXCEEDED"  # the client's own
    return refusal_of(error).reason  # type: ignore[arg-type]


def crowd(daemon: Inside, seed: int, seconds: float) -> Crowd:
    """Runs one; returns what it saw."""

    async def run() -> Crowd:
        made = Crowd(daemon.settings.listen[0].replace("unix://", "unix:"), seed, seconds)
        await made.run()
        return made

    return asyncio.run(run())


@pytest.mark.parametrize("archive", [False, True])
def test_no_read_of_a_fan_out_fails_in_an_unforeseen_way(
    tmp_path: Path, archive: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A hundred readers beside saves, pruning, deletions, snapshots, a tiny cache and callers that go away."""
    flags = {"archive": f"file://{tmp_path}/bucket", "archive_interval": "0.1"} if archive else {}
    seconds = float(os.environ.get("STATEWARD_FAN_OUT_S", "1.5"))
    with daemon_inside(tmp_path, cache_size="1MiB", **flags) as daemon:
        seen = crowd(daemon, 7, seconds)
        assert daemon.wire.findings() == []
    assert seen.answers > READERS
    assert set(seen.refused) <= FAIR | {"CANCELLED"}, seen.refused
    assert not [record for record in caplog.records if "unexpectedly" in record.message]
