"""The danger: a client whose gRPC retries what cannot succeed, or gives up while the daemon starts again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest
from tests.daemon.wire import THREAD
from tests.service.conftest import Place
from tests.service.test_error_table import make

from stateward._operations.failures import BY_CODE
from stateward._operations.reasons import BY_REASON
from stateward.testing import run_daemon
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from stateward.v1.diff_pb2 import AddNumber, Diff, Edit, SetSlot
from stateward.v1.state_pb2 import Value
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.service.calls.status import CODES, NO_RETRY, PUSHBACK_KEY, trailers

SAVES = 60


@pytest.fixture(scope="module")
def config(repository: Path) -> dict[str, Any]:
    """The service config that clients in other languages use."""
    found: dict[str, Any] = json.loads((repository / "proto/service_config.json").read_text())
    return found


def retried_codes(config: dict[str, Any]) -> set[str]:
    """The codes that are retried; all methods have the same policy."""
    policies = {json.dumps(entry["retryPolicy"]) for entry in config["methodConfig"]}
    assert len(policies) == 1
    return set(json.loads(policies.pop())["retryableStatusCodes"])


def test_it_retries_what_the_python_client_retries(config: dict[str, Any]) -> None:
    """For each reason of the daemon, and for each error of gRPC itself, both policies say the same."""
    retried = retried_codes(config)
    for reason, code in CODES.items():
        sent = dict(trailers(make(reason), b""))
        assert (code.name in retried and sent.get(PUSHBACK_KEY) != NO_RETRY) == BY_REASON[reason].retryable, reason
    # A client cannot tell whether gRPC refused a message for its size or for lack of room. grpc-java says UNKNOWN when
    # a connection closes under a call that begins; the daemon never says it.
    own = {"RESOURCE_EXHAUSTED", "UNKNOWN"}
    assert {code for code, kind in BY_CODE.items() if kind.retryable} == retried - own
    assert not {code.name for code in CODES.values()} & {"UNKNOWN", "CANCELLED"}


def test_it_names_methods_that_exist(config: dict[str, Any]) -> None:
    """A method that was renamed would have no time limit."""
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.Default()
    default, short = config["methodConfig"]
    assert default["name"] == [{}]
    assert "timeout" not in default  # watches, writers and waits take as long as they take
    assert len(short["name"]) > 20
    for name in short["name"]:
        method = pool.FindServiceByName(name["service"]).FindMethodByName(name["method"])
        assert not method.client_streaming
        assert not method.server_streaming


def test_a_refusal_for_good_ends_the_retries(place: Place) -> None:
    """A state that is too large comes with the trailer on which every gRPC stops."""
    if place.wire.name != "grpc":
        pytest.skip("frames have no trailers")
    large = SetSlot(slot="large", value=Value(data=bytes(5 << 20)))
    with pytest.raises(grpc.RpcError) as refused:
        place.wire.save(place.request(diff=Diff(edits=[Edit(set_slot=large)])))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(refused.value.trailing_metadata())[PUSHBACK_KEY] == NO_RETRY


def test_no_save_is_lost_or_doubled_while_the_daemon_is_killed(config: dict[str, Any]) -> None:
    """A client without a line of retry code counts to sixty over three kills."""
    options = [("grpc.service_config", json.dumps(config)), ("grpc.max_reconnect_backoff_ms", 200)]
    with run_daemon() as daemon, grpc.insecure_channel(daemon.target, options=options) as channel:
        stub = CheckpointServiceStub(channel)
        addition = Diff(edits=[Edit(add_number=AddNumber(slot="count", delta=1))])
        for number in range(1, SAVES + 1):
            if number % 20 == 0:
                daemon.kill()
                pending = stub.Save.future(
                    SaveRequest(thread=THREAD, diff=addition, options=WriteOptions(request_id=str(uuid4())))
                )
                daemon.start()
                answer = pending.result()
            else:
                answer = stub.Save(
                    SaveRequest(thread=THREAD, diff=addition, options=WriteOptions(request_id=str(uuid4())))
                )
        assert (answer.version, answer.numbers["count"]) == (SAVES, SAVES)
