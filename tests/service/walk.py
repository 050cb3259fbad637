"""The walk over all methods of the contract: which there are, what they are asked, and the daemon that is asked.

The methods are those of the descriptors, so a new one is in the walk by itself.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pkgutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tests.metrics.scraped import ANY_PORT

import stateward.v1
from stateward import Effect, Put
from stateward.testing import Daemon, run_daemon
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.signal_service_pb2_grpc import SignalServiceStub
from stateward.v1.state_pb2 import Value
from stateward.v1.write_pb2 import WriteOptions

MIB = 1 << 20
LIMIT_MIB, CACHE_MIB = 160, 8
# An idle daemon has about 70 MiB. What is beyond the limit is what the C library keeps, and what is on its way.
PEAK_BYTES_MAX = 2 * LIMIT_MIB * MIB
PATIENCE_S = 60.0
THREAD = "walked"
LARGE = 950_000
BLOB = hashlib.sha256(b"b").digest()
LOOK_S = 0.02
NO_MEMORY = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="this system does not tell a process's memory"
)


def methods() -> list[MethodDescriptor]:
    """All methods of the contract."""
    found = []
    for module in pkgutil.iter_modules(stateward.v1.__path__, "stateward.v1."):
        if module.name.endswith("_service_pb2"):
            services = importlib.import_module(module.name).DESCRIPTOR.services_by_name
            found += [method for name in sorted(services) for method in services[name].methods]
    return found


METHODS = {method.name: method for method in methods()}


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


# What a field of any request has, by its name. A request that is refused all the same has a small answer.
FIELDS: dict[str, Any] = {
    "thread": THREAD, "page_size": 1000, "keys": ["k0", "k1", "k2", "k3"], "max_bytes": 64 * MIB, "key": "k0",
    "name": "k0", "anchor": "a", "log": "log", "delimiter": "/", "sha256": BLOB,
}  # fmt: skip
FLAGS = ("include_", "all_")
MORE: dict[str, dict[str, Any]] = {
    "DiffCheckpoints": {"base": {"version": 0}},
    "BeginEffect": {"holder": {"name": "h", "incarnation": "i"}, "request_id": "r"},
    "ReadBlob": {"blob": {"sha256": hashlib.sha256(bytes(3 * MIB)).digest()}},
    "ReadLog": {"max_bytes": 3 * MIB},
    "ReadHistory": {"max_bytes": 0},
    "ListEffects": {"anchor": None},
    "Drain": {"thread": ""},
}


def request_for(method: MethodDescriptor) -> Message:
    """A request whose answer is as large as that of this method can be, as far as names of fields tell."""
    made = GetMessageClass(method.input_type)()
    given = {**FIELDS, **MORE.get(method.name, {})}
    for field in method.input_type.fields:
        is_flag = field.type == FieldDescriptor.TYPE_BOOL and field.name.startswith(FLAGS)
        value = True if is_flag else given.get(field.name)
        if value is None or field.is_repeated != isinstance(value, list):
            continue
        with suppress(TypeError, ValueError):  # a field of this name and another type
            made.MergeFrom(type(made)(**{field.name: value}))
    return made


@contextmanager
def run_walked() -> Iterator[Daemon]:
    """A daemon with one memory limit, and a thread that has much of everything."""
    limits = {"memory_limit": f"{LIMIT_MIB}MiB", "cache_size": f"{CACHE_MIB}MiB", "max_state_size": "16MiB"}
    with run_daemon(sweep_interval="0", metrics=ANY_PORT, **limits) as running:
        with running.client(blob_threshold=1 << 30) as client:
            thread = client.thread(THREAD)
            state = thread.hydrate()
            state.slots["a"] = os.urandom(1_000_000)
            for _ in range(2):
                state.logs["log"].append("x" * LARGE)
                thread.save(state)
            client.records(THREAD).write([Put(f"k{n}", os.urandom(LARGE)) for n in range(4)])
            for n in range(4):
                thread.effects.put([Effect(f"k{n}", os.urandom(900_000), anchor="a")])
            thread.blobs.write(bytes(3 * MIB))
        with grpc.insecure_channel(running.target) as channel:
            send = SignalServiceStub(channel).SendSignal
            for n in range(6):
                value = Value(media_type="text/plain", data=b"x" * 500_000)
                send(
                    SendSignalRequest(thread=THREAD, name="k0", payload=value, options=WriteOptions(request_id=f"{n}"))
                )
        yield running


def status_bytes(daemon: Daemon, name: str) -> int:
    for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the daemon has ended")


@contextmanager
def bounded(daemon: Daemon, what: str) -> Iterator[Callable[[], None]]:
    """Gives the save of a neighbour. The memory must stay near the limit all the time. The map, which the system may
    take back, does not count."""
    over, peak = threading.Event(), [0]

    def look() -> None:
        while not over.wait(LOOK_S):
            peak[0] = max(peak[0], status_bytes(daemon, "RssAnon"))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        with daemon.client(retry_timeout=PATIENCE_S) as neighbour:
            thread = neighbour.thread("neighbour")

            def save() -> None:
                thread.append("log", 1)

            yield save
            save()
    finally:
        over.set()
        looking.join()
    assert peak[0] <= PEAK_BYTES_MAX, f"{what}: {peak[0] // MIB} MiB"


def eventually(
    is_so: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None, patience_s: float = PATIENCE_S
) -> bool:
    end = time.monotonic() + patience_s
    while not (found := is_so()) and time.monotonic() < end:
        meanwhile()
        time.sleep(0.05)
    return found
