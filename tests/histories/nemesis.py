"""What goes wrong in a history: one evil after the other, chosen by dice."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
from tests.histories.calls import PAGE_BYTES
from tests.histories.copies import Copies
from tests.histories.machines import Machine
from tests.histories.recorder import Recorder

from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward.v1.thread_service_pb2 import (
    ATTACH_MODE_TAKE_OVER,
    AttachRequest,
    DeleteThreadRequest,
    DetachRequest,
    ListThreadsRequest,
)

CALL_S = 3.0
SET_BACK_MAX = 2
CLOCKS_S = (0, 0, -3_000, 3_000, 30 * 3600, -30 * 3600, 365 * 86400, -365 * 86400)  # what wall clocks are off by
WIRES_BYTES_S = (20_000, 60_000, 200_000)


class Nemesis:
    """``evils``: names of its methods with their weights. ``bucket``: the archive's directory, if it is one."""

    def __init__(
        self, machines: Sequence[Machine], threads: Sequence[str], recorder: Recorder, seed: object,
        evils: dict[str, int], bucket: Path | None = None, copies: Copies | None = None,
    ) -> None:  # fmt: skip
        self._machines, self._threads, self._recorder = machines, threads, recorder
        self._dice = random.Random(f"{seed} nemesis")
        self._evils = evils
        self._bucket, self._copies = bucket, copies
        self._copy: Path | None = None
        self._times = 0
        self.over = threading.Event()

    def rage(self, clients_are_done: Callable[[], bool]) -> None:
        """Does evil until the clients are done, then ends it."""
        while not clients_are_done():
            self.over.wait(self._dice.uniform(0.05, 0.5))
            if self._evils:
                (name,) = self._dice.choices(list(self._evils), list(self._evils.values()))
                getattr(self, name)()
        for machine in self._machines:
            if machine.weather is not None:
                machine.weather.clear()
            machine.set_clock(0)
            machine.resume()
            machine.start()
        if any(machine.is_newer for machine in self._machines):
            self.finish_upgrade()

    def _pick(self) -> tuple[Machine, str]:
        return self._dice.choice(self._machines), self._dice.choice(self._threads)

    def _nap(self, low: float, high: float) -> None:
        self.over.wait(self._dice.uniform(low, high))

    # -- processes ------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL, and a new start."""
        machine, _ = self._pick()
        self._recorder.event("kill", machine=machine.name)
        machine.kill()
        self._nap(0, 0.3)
        machine.start()

    def away(self) -> None:
        """SIGKILL, and a new start only when its threads may have been taken."""
        machine, _ = self._pick()
        self._recorder.event("away", machine=machine.name)
        machine.kill()
        self._nap(1, 2)
        machine.start()

    def stop(self) -> None:
        """SIGTERM, and a new start."""
        machine, _ = self._pick()
        self._recorder.event("stop", machine=machine.name)
        machine.stop()
        self._nap(0, 0.2)
        machine.start()

    def pause(self) -> None:
        """It stands still; others may take its threads meanwhile."""
        machine, _ = self._pick()
        self._recorder.event("pause", machine=machine.name)
        machine.pause()
        self._nap(0.1, 1.5)
        machine.resume()

    def sleep(self) -> None:
        """The machine sleeps, and its monotonic clock with it; others may take its threads meanwhile."""
        machine, _ = self._pick()
        self._recorder.event("sleep", machine=machine.name)
        machine.sleep(lambda: self._nap(1.0, 4.0))

    def turn_clock(self) -> None:
        """A wall clock jumps, or is set right."""
        machine, _ = self._pick()
        seconds = self._dice.choice(CLOCKS_S)
        self._recorder.event("turn clock", machine=machine.name, seconds=seconds)
        machine.set_clock(seconds)

    def upgrade(self) -> None:
        """One machine gets the next format; the other ones go on as long as they may."""
        older = [machine for machine in self._machines if not machine.is_newer]
        if len(older) < len(self._machines):
            return
        machine = self._dice.choice(older)
        self._recorder.event("upgrade", machine=machine.name)
        (machine.kill if self._dice.random() < 0.5 else machine.stop)()
        machine.upgrade()
        machine.start()

    def finish_upgrade(self) -> None:
        """A rolling upgrade comes to its end."""
        for machine in self._machines:
            if not machine.is_newer:
                machine.stop()
                machine.upgrade()
                machine.start()

    # -- threads --------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Takes a thread from whoever holds it."""
        machine, thread = self._pick()
        self._recorder.event("take over", machine=machine.name, thread=thread)
        with suppress(grpc.RpcError):
            machine.wire.threads.Attach(AttachRequest(thread=thread, mode=ATTACH_MODE_TAKE_OVER), timeout=CALL_S)

    def detach(self) -> None:
        """Gives a thread up."""
        machine, thread = self._pick()
        self._recorder.event("detach", machine=machine.name, thread=thread)
        with suppress(grpc.RpcError):
            machine.wire.threads.Detach(DetachRequest(thread=thread), timeout=CALL_S)

    def look_back(self) -> None:
        """Reads the old history of an orphan, and of a thread."""
        machine, thread = self._pick()
        names = [thread]
        with suppress(grpc.RpcError):
            names += orphans_of(machine, thread)
        request = HydrateRequest(thread=self._dice.choice(names), max_bytes=PAGE_BYTES)
        request.version.version = 1
        with suppress(grpc.RpcError):
            machine.wire.checkpoints.Hydrate(request, timeout=CALL_S)

    def copy(self) -> None:
        """Forks a thread, or prunes what was forked."""
        machine, thread = self._pick()
        if self._copies is not None:
            if self._dice.random() < 0.5:
                self._copies.prune(machine, self._dice)
            else:
                self._copies.make(machine, thread, self._dice)

    def slow_detach(self) -> None:
        """A thread is given up while the bucket takes its time; the clients go on saving."""
        machine, thread = self._pick()
        if machine.weather is None:
            return
        self._recorder.event("slow detach", machine=machine.name, thread=thread)
        machine.weather.slow_head_s = self._dice.uniform(0.3, 2.5)
        with suppress(grpc.RpcError):
            machine.wire.threads.Detach(DetachRequest(thread=thread), timeout=CALL_S)
        machine.weather.slow_head_s = 0.0

    # -- the bucket -----------------------------------------------------------------------------------------------

    def storm(self) -> None:
        """Bad weather before one machine, or all."""
        machines = [self._pick()[0]] if self._dice.random() < 0.5 else self._machines
        self._recorder.event("storm", machines=[machine.name for machine in machines])
        for machine in machines:
            if machine.weather is not None:
                machine.weather.badness = self._dice.uniform(0.2, 1)
        self._nap(0.3, 1.5)
        for machine in machines:
            if machine.weather is not None:
                machine.weather.badness = 0.0

    def cut(self) -> None:
        """The bucket is away for one machine."""
        machine, _ = self._pick()
        if machine.weather is None:
            return
        self._recorder.event("cut", machine=machine.name)
        machine.weather.is_cut = True
        self._nap(0.2, 1.5)
        machine.weather.is_cut = False

    def throttle(self) -> None:
        """The bucket refuses every n-th request of any kind, of one machine or of all."""
        machines = [self._pick()[0]] if self._dice.random() < 0.5 else self._machines
        every = self._dice.choice((3, 4, 7))
        self._recorder.event("throttle", machines=[machine.name for machine in machines], every=every)
        for machine in machines:
            if machine.weather is not None:
                machine.weather.refuses_every = every
        self._nap(0.5, 2)
        for machine in machines:
            if machine.weather is not None:
                machine.weather.refuses_every = 0

    def slow_wire(self) -> None:
        """A machine is behind a slow wire: the upload of some values takes as long as the lease."""
        machine, _ = self._pick()
        if machine.weather is None:
            return
        self._recorder.event("slow wire", machine=machine.name)
        machine.weather.put_bytes_s = machine.weather.get_bytes_s = self._dice.choice(WIRES_BYTES_S)
        self._nap(0.5, 2.5)
        machine.weather.put_bytes_s = machine.weather.get_bytes_s = 0.0

    def slow_heads(self) -> None:
        """Writes of HEAD take long."""
        machine, _ = self._pick()
        if machine.weather is None:
            return
        self._recorder.event("slow heads", machine=machine.name)
        machine.weather.slow_head_s = self._dice.uniform(0.1, 0.6)
        self._nap(0.5, 1.5)
        machine.weather.slow_head_s = 0.0

    def set_bucket_back(self) -> None:
        """First copies the bucket; later puts the copy in its place."""
        assert self._bucket is not None
        if self._copy is None:
            self._copy = self._bucket.with_name("copy")
            with suppress(shutil.Error, FileNotFoundError):  # daemons write meanwhile
                shutil.copytree(self._bucket, self._copy)
            return
        if self._times == SET_BACK_MAX:
            return
        self._times += 1
        self._recorder.event("bucket set back")
        stopped = [machine for machine in self._machines if self._dice.random() < 0.7]
        for machine in self._machines:
            (machine.kill if machine in stopped else machine.stop)()
        shutil.rmtree(self._bucket)
        shutil.copytree(self._copy, self._bucket)
        self._recorder.write("set back", time=time.monotonic_ns())
        for machine in self._machines:
            machine.start()

    # -- disks ----------------------------------------------------------------------------------------------------

    def lose_disk(self) -> None:
        """A machine comes back with an empty disk."""
        machine, _ = self._pick()
        self._recorder.event("lost disk", machine=machine.name)
        machine.lose_disk()
        self._recorder.loss(machine.name, "")
        machine.start()

    def delete_here(self) -> None:
        """Deletes a thread on one machine's disk, and often kills the daemon at once."""
        machine, thread = self._pick()
        self._recorder.event("delete here", machine=machine.name, thread=thread)
        machine.begin_loss(thread)
        with suppress(grpc.RpcError):
            machine.wire.threads.DeleteThread(
                DeleteThreadRequest(thread=thread, local_only=True, allow_missing=True), timeout=CALL_S
            )
        if self._dice.random() < 0.5:
            machine.kill()
            machine.start()
        machine.end_loss(thread)
        self._recorder.loss(machine.name, thread)


def orphans_of(machine: Machine, thread: str) -> list[str]:
    """The names of what a machine set aside of a thread."""
    request = ListThreadsRequest(name_prefix=f"{thread}@", page_size=1000)
    answer = machine.wire.threads.ListThreads(request, timeout=CALL_S, wait_for_ready=True)
    return sorted(each.thread for each in answer.threads if each.orphan.thread == thread)
