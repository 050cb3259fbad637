"""What `--access` costs: the check of a token and its grants by itself, and a lone save with and without it."""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.bench.field import Field
from tests.bench.payload import Payload
from tests.bench.peers.stateward import STUB
from tests.bench.report import Section
from tests.bench.rounds import p50_ms, take_turns
from tests.bench.sections import Effort

from stateward import Client
from stateward.v1.checkpoint_service_pb2 import DESCRIPTOR, SaveRequest
from stateward_sidecar.service.admission.callers import Callers
from stateward_sidecar.service.admission.grants import needs_of

WITH, WITHOUT, CHECK = f"{STUB}, --access", f"{STUB}, no --access", "check of token and grants"
TOKEN = "a" * 40
GRANTS = {"1 principal, 1 grant": (1, 1), "1,000 principals, 20 grants": (1000, 20)}
TOGETHER = 200


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Two daemons, which save in turn, on both wires."""
    section = Section("access", "a lone save of one small entry by the Python client, with and without --access")
    for case, (principals, grants) in GRANTS.items():
        path = field.work / "access.toml"
        path.touch(mode=0o600)
        path.write_text("\n".join(_principal(number, grants) for number in range(principals)))
        section.add(CHECK, case, us=_check_us(path, effort))
    with ExitStack() as stack:
        daemons = {WITHOUT: stack.enter_context(field.own_daemon("open"))}
        daemons[WITH] = stack.enter_context(field.own_daemon("access", access=str(path)))
        for wire in ("grpc", "frames"):
            os.environ["STATEWARD_WIRE"] = wire
            stack.callback(os.environ.pop, "STATEWARD_WIRE", None)
            clients = {
                name: stack.enter_context(Client(each.target, token=TOKEN, namespace="team"))
                for name, each in daemons.items()
            }
            times = take_turns({name: _saves(client) for name, client in clients.items()}, effort.rounds)
            without = statistics.median(times[WITHOUT])
            section.add(WITHOUT, wire, p50_ms=p50_ms(times[WITHOUT]))
            section.add(WITH, wire, p50_ms=p50_ms(times[WITH]), x_without=statistics.median(times[WITH]) / without)
    section.notes.append("the check: who calls, by the token, and the grants for a save; the median of many")
    yield section


def _principal(number: int, grants: int) -> str:
    token = hashlib.sha256((TOKEN if not number else f"{TOKEN}{number}").encode()).hexdigest()
    told = ", ".join(f'"read,write team/agent-{each}-*"' for each in range(grants))
    return f'[[principal]]\nname = "p{number}"\ntoken_sha256 = "{token}"\ngrants = [{told}]\n'


def _check_us(path: Path, effort: Effort) -> float:
    callers, metadata = Callers(None, path), [("authorization", f"Bearer {TOKEN}")]
    needs = needs_of(DESCRIPTOR.services_by_name["CheckpointService"].methods_by_name["Save"])
    request = SaveRequest(namespace="team", thread="agent-0-booking-4711")

    def check() -> None:
        for _ in range(TOGETHER):
            callers.identify(metadata).admit(needs, request)

    return statistics.median(_timed(check) for _ in range(max(effort.rounds, 20))) / TOGETHER * 1e6


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _saves(client: Client) -> Callable[[], Callable[[], object]]:
    thread = client.thread("agent-0-lone")
    return lambda: lambda: thread.append("m", "one small entry")
