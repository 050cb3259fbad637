"""The load of a compiled client: a Python client takes so much CPU that it hides the server's.

Stateward's is the load mode of the agent in Go, `examples/go`. The program for other servers is `tests/bench/load`.
Both make their calls with `examples/go/load`.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from tests.bench.field import Field
from tests.bench.payload import Payload
from tests.bench.peers.stateward import ECHO, STUB
from tests.bench.processes import cpu_s
from tests.bench.report import Section
from tests.bench.sections import Effort
from tests.bench.servers import PeerAbsent, free_port
from tests.languages import building

from stateward.testing import Daemon
from stateward.v1 import checkpoint_service_pb2 as pb
from stateward.values import JSON

SOURCE = Path(__file__).resolve().parents[1] / "load"
PROGRAM = building.BUILT.parent / "bench" / "load-client"
"""It stays, because Go links it again only after a change if it is there."""
CLIENT = "compiled client"
IN_FLIGHT = (1, 16, 64, 256)
QUICK_IN_FLIGHT = (1, 16)
SIZES = {"1 KB": 1_000, "64 KB": 64_000}
SLOT = "64 KB"
"""The size that is saved as a slot; a log of such entries would be another load with every save."""
BODIES = 30
"""How many different ones go round."""
CONNECTIONS = 8
SECONDS, QUICK_SECONDS = 0.5, 0.1
REPETITIONS = 3
DOWNLOAD_LIMIT_S, BUILD_LIMIT_S, RUN_LIMIT_S = 120, 400, 60


@dataclass(frozen=True)
class Programs:
    """The compiled client."""

    agent: Path
    """The agent in Go."""
    others: Path
    """The program for other servers."""

    def command(self, system: str) -> list[str | Path]:
        """What loads a system."""
        return [self.agent, "load"] if system == STUB else [self.others]


@dataclass(frozen=True)
class Target:
    """A server as one row names it, and how the program reaches it."""

    name: str
    system: str
    address: str
    pid: int = 0
    """Whose CPU is counted; 0 = nobody's."""
    connections: int = 1


@dataclass(frozen=True)
class Load:
    """What the program found."""

    calls_per_s: float
    p50_ms: float
    p99_ms: float
    server_cpu_us: float
    """By call; 0 = not known."""


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """One table; nothing if the program cannot be built here, which is then named."""
    try:
        programs = build(PROGRAM)
    except PeerAbsent as reason:
        field.skipped[CLIENT] = str(reason)
        return
    section = Section("load", f"load of a {CLIENT} in Go, synced before each answer")
    tcp = f"127.0.0.1:{free_port()}"
    with field.own_daemon("load", listen=tcp, exposed_port=True) as daemon:
        targets = list_targets(field, daemon, tcp)
        for size, size_bytes in SIZES.items():
            values = list(itertools.islice(make_values(payload, size_bytes), BODIES))
            for in_flight in QUICK_IN_FLIGHT if effort.quick else IN_FLIGHT:
                found = take_turns(field, programs, targets, values, size == SLOT, in_flight, effort)
                add_rows(section, f"{size}, {in_flight} in flight", found)
    section.notes += [
        "a save appends 1 KB to a log, or sets a slot to 64 KB, with compare-and-swap; a thread for each call",
        "the echo answers the same request; peers get the same bytes as a row, an entry of a list, a key",
        "unix socket and one connection, unless a row says so; etcd: one connection, TCP",
        "PostgreSQL and Redis: unix socket, a connection for each call in flight, PostgreSQL at most 90",
        f"medians of {REPETITIONS} short loads, in turn; server cpu: by call, in steps of 10 ms",
        "stateward x: the rate of its first row as part of this row's",
    ]
    yield section


def take_turns(
    field: Field,
    programs: Programs,
    targets: list[Target],
    values: list[bytes],
    as_slot: bool,
    in_flight: int,
    effort: Effort,
) -> dict[str, Load]:
    """Short loads on each in turn; the medians. A peer that fails is left out from then on, and named."""
    requests = [save_body(value, as_slot=as_slot) for value in values]
    seconds, repetitions = (QUICK_SECONDS, 1) if effort.quick else (SECONDS, REPETITIONS)
    found = dict[str, list[Load]]()
    for target in targets * repetitions:
        if target.connections > in_flight or target.name in field.skipped:
            continue
        bodies = requests if target.system in {STUB, ECHO} else values
        try:
            found.setdefault(target.name, []).append(run(programs, target, in_flight, seconds, bodies))
        except RuntimeError as error:
            if target.name not in field.servers:
                raise
            field.skipped[target.name] = f"load of the {CLIENT}: {error}"
            del found[target.name]
    return {name: median(loads) for name, loads in found.items()}


def list_targets(field: Field, daemon: Daemon, tcp: str) -> list[Target]:
    """Stateward in four ways, then what it is compared with."""
    many = f"{CONNECTIONS} connections"
    targets = [
        Target(STUB, STUB, daemon.target, daemon.pid),
        Target(f"{STUB}, {many}", STUB, daemon.target, daemon.pid, CONNECTIONS),
        Target(f"{STUB}, TCP", STUB, tcp, daemon.pid),
        Target(f"{STUB}, TCP, {many}", STUB, tcp, daemon.pid, CONNECTIONS),
        Target(ECHO, ECHO, field.echo.address, field.echo.pid),
    ]
    for name, server in field.servers.items():
        # Each client of PostgreSQL has a process that ends with it, before anybody counts its CPU.
        targets.append(Target(name, name, server.address, 0 if name == "PostgreSQL" else server.pid))
    return targets


def median(loads: list[Load]) -> Load:
    """Each figure's own median."""
    return Load(*map(statistics.median, zip(*map(astuple, loads), strict=True)))


def add_rows(section: Section, case: str, found: dict[str, Load]) -> None:
    """Each with its rate beside the echo's and Stateward's."""
    for name, load in found.items():
        section.add(
            name,
            case,
            calls_per_s=load.calls_per_s,
            p50_ms=load.p50_ms,
            p99_ms=load.p99_ms,
            server_cpu_us=load.server_cpu_us or None,
            x_echo=load.calls_per_s / found[ECHO].calls_per_s,
            stateward_x=found[STUB].calls_per_s / load.calls_per_s,
        )


def build(program: Path) -> Programs:
    """Compiles the client, for other servers to this path. Raises PeerAbsent if Go or one of its modules is missing."""
    go = find_go()
    # The version of Go that is installed, and nothing but what go.sum names.
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    environment |= {"CGO_ENABLED": "0"}
    program.parent.mkdir(parents=True, exist_ok=True)
    with program.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests beside each other build it too
        _build(go, program, environment)
    try:
        return Programs(building.build("go"), program)
    except building.ToolMissing as reason:
        raise PeerAbsent(str(reason)) from None


def _build(go: str, program: Path, environment: dict[str, str]) -> None:
    for arguments, limit_s in ((["mod", "download"], DOWNLOAD_LIMIT_S), (["build", "-o", program, "."], BUILD_LIMIT_S)):
        try:
            done = subprocess.run(
                [go, *arguments],
                cwd=SOURCE,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PeerAbsent(f"go {arguments[0]} took more than {limit_s} s") from None
        if done.returncode and arguments[0] == "mod":
            raise PeerAbsent(f"Go cannot load its modules: {' '.join(done.stderr.split())[-200:]}")
        if done.returncode:
            raise RuntimeError(f"go build failed: {done.stderr}")


def find_go() -> str:
    """Go's program. Raises PeerAbsent if there is none."""
    path = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if path is None:
        raise PeerAbsent("Go is not installed")
    return path


_numbers = itertools.count()


def run(programs: Programs, target: Target, in_flight: int, seconds: float, bodies: list[bytes]) -> Load:
    """One load on one server. Raises RuntimeError with the program's words if a call failed."""
    job = {
        "system": target.system,
        "address": target.address,
        "in_flight": in_flight,
        "connections": target.connections,
        "seconds": seconds,
        "prefix": f"load-{os.getpid()}-{next(_numbers)}",
        "bodies": [base64.b64encode(body).decode() for body in bodies],
    }
    cpu_before_s = cpu_s(target.pid) if target.pid else 0.0
    done = subprocess.run(
        programs.command(target.system),
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=seconds + RUN_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(" ".join(done.stderr.split())[-300:])
    found = json.loads(done.stdout)
    cpu = (cpu_s(target.pid) - cpu_before_s) / found["made"] * 1e6 if target.pid else 0.0
    return Load(found["calls"] / found["seconds"], found["p50_ms"], found["p99_ms"], cpu)


def make_values(payload: Payload, size_bytes: int) -> Iterator[bytes]:
    """JSON strings of exactly this size, each with the next part of the recorded text, for ever."""
    everything = b"".join(itertools.chain.from_iterable(payload.runs)).decode()
    # What JSON would have to escape is left out, so that the size holds.
    text = re.sub(r"[^ !#-\[\]-~]", "", everything)
    length = size_bytes - 2
    for start in itertools.cycle(range(0, len(text) - length, length)):
        yield f'"{text[start : start + length]}"'.encode()


def save_body(value: bytes, *, as_slot: bool) -> bytes:
    """A SaveRequest to which the program adds thread, version and request id."""
    request = pb.SaveRequest()
    edit = request.diff.edits.add()
    if as_slot:
        edit.set_slot.slot = "page"
        edit.set_slot.value.media_type, edit.set_slot.value.data = JSON, value
    else:
        edit.append.log = "messages"
        edit.append.entries.add(media_type=JSON, data=value)
    return request.SerializeToString()
