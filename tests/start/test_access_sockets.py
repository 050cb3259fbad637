"""The danger: a caller is taken for a principal because of a socket that is not that principal's, or it keeps the
socket of a principal that is gone."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.daemon.framed import FramedConnection, FramesGone, FramesRefused
from tests.daemon.inside import daemon_inside
from tests.start.contract import (
    METHODS,
    STREAMED,
    WIRES,
    begin,
    digest_of,
    open_channel,
    reason_in,
    reason_of,
    request_of,
    streamed_reason,
)
from tests.start.launch import start
from tests.start.test_access_codes import RIGHT, asked_by, grant_of, right_for
from tests.start.test_access_uninvited import wait_for_the_end_of_a_writer

from stateward import Client
from stateward.errors import PermissionDenied, StatewardError, Unauthenticated
from stateward.testing import Daemon, run_daemon
from stateward_sidecar.errors import StartError
from stateward_sidecar.service.admission.accessfile import SOCKETS_MAX, read_access_file
from stateward_sidecar.service.calls.localcall import Peer
from stateward_sidecar.service.local import listener
from stateward_sidecar.service.methods import RULES
from stateward_sidecar.service.serving.server import own_connections_max

pytestmark = pytest.mark.usefixtures("begun_warm")
EVERYTHING = ("admin */*", "read,write,signal,delete */*")
KEEPER = "k" * 40
AGAIN_WITHIN_S = 60.0


def principal(name: str, grants: Sequence[str] = ("read,write team/*",), **identities: object) -> str:
    told = "".join(f"{key} = {_toml(value)}\n" for key, value in identities.items())
    return f'[[principal]]\nname = "{name}"\n{told}grants = {_toml(list(grants))}\n\n'


def _toml(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).replace("'", '"')


KEEPS = principal("keeper", EVERYTHING, token_sha256=digest_of(KEEPER))


class Place:
    """A directory with a daemon, its file of principals, and sockets of theirs."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.file = directory, directory / "access.toml"

    def url(self, name: str) -> str:
        """The socket of a principal."""
        return f"unix://{self.directory}/{name}.sock"

    def path(self, name: str) -> Path:
        return self.directory / f"{name}.sock"

    def write(self, *principals: str) -> None:
        """As a program does that replaces the file."""
        part = self.file.with_suffix(".part")
        part.write_text(KEEPS + "".join(principals))
        part.replace(self.file)

    def own(self, name: str, grants: Sequence[str] = ("read,write team/*",)) -> str:
        return principal(name, grants, socket=self.url(name))


@pytest.fixture
def place(short: Path) -> Place:
    return Place(short)


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STATEWARD_WIRE", request.param)
    return str(request.param)


def wait_until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + AGAIN_WITHIN_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def answers(target: str) -> bool:
    """Whether a call without a token is answered there."""
    try:
        with Client(target, namespace="team", retry_timeout=0) as client:
            client.server_info()
    except StatewardError:
        return False
    return True


def denials_of(daemon: Daemon) -> list[str]:
    """The peers of calls that were denied, as the log tells them."""
    lines = [json.loads(line) for line in daemon.stderr.splitlines() if line.startswith("{")]
    return [line["peer"] for line in lines if line.get("security") == "denied"]


def test_who_comes_through_it_is_its_principal(place: Place, wire: str) -> None:
    """Without a token, alone and on streams; and nothing more. Through the socket of everybody the same caller is
    nobody."""
    place.write(place.own("a", ["read,write team/a-*"]), place.own("b", ["read team/*"]))
    with run_daemon(place.directory / "data", access=place.file) as daemon, ExitStack() as stack:
        a, b, nobody = (
            stack.enter_context(Client(target, namespace="team"))
            for target in (place.url("a"), place.url("b"), daemon.target)
        )
        a.thread("a-1").append("m", 1)
        assert a.server_info().wire == b.server_info().wire == wire
        assert (a.server_info().principal, b.server_info().principal) == ("a", "b")
        assert (a.server_info().reads_part, b.server_info().reads_part) == (True, False)
        with pytest.raises(PermissionDenied, match="a may not write team/b-1"):
            a.thread("b-1").append("m", 1)
        wait_until(lambda: [each for each in denials_of(daemon) if f"socket={place.path('a')}" in each.split()])
        with stack.enter_context(b.thread("a-1").watch(after_sequence=0)) as watch:
            assert next(watch)
        with pytest.raises(PermissionDenied, match="b may not write team/a-1"):
            b.thread("a-1").append("m", 2)
        with pytest.raises(Unauthenticated, match="carries no token"):
            nobody.thread("a-1").hydrate()


def test_a_token_counts_first(place: Place, wire: str) -> None:
    """As beside a certificate: a call with a token is that token's principal, or nobody."""
    place.write(place.own("a", ["read team/a-*"]))
    with run_daemon(place.directory / "data", access=place.file):
        with Client(place.url("a"), token=KEEPER, namespace="team") as client:
            client.thread("other").append("m", 1)
        wrong = Client(place.url("a"), token="x" * 40, namespace="team")
        with wrong, pytest.raises(Unauthenticated, match="token that is not valid"):
            wrong.thread("a-1").hydrate()


def test_its_user_is_no_other_principal(place: Place, wire: str) -> None:
    """Whoever may do everything as a user may do through the socket of an agent what the agent may."""
    place.write(place.own("a"), principal("operator", EVERYTHING, uid=os.getuid(), gid=os.getgid()))
    with run_daemon(place.directory / "data", access=place.file), Client(place.url("a"), namespace="team") as client:
        client.thread("t").append("m", 1)
        with pytest.raises(PermissionDenied):
            client.thread("t").delete()
        with pytest.raises(PermissionDenied):
            client.stats()


@pytest.mark.parametrize("wire_of_call", WIRES)
def test_every_method_through_every_socket(place: Place, wire_of_call: str) -> None:
    """Of the contract: what a principal may do with a token it may do through its socket, and nothing more. Nobody else
    may: not through a socket of one who has other rights, and not after its principal is gone."""
    owners = {"elsewhere": ["read,write,signal,delete other/*"], "all": list(EVERYTHING)}
    owners |= {right_for(name): [grant_of(asked_by(name).verbs or frozenset({"read"}), "team")] for name in METHODS}
    assert len(owners) <= len(RIGHT) + 2 < SOCKETS_MAX
    place.write(*(place.own(name, grants) for name, grants in owners.items()))
    with run_daemon(place.directory / "data", access=place.file, sweep_interval=0), ExitStack() as stack:
        through = {each: stack.enter_context(open_channel(place.url(each), wire_of_call)) for each in owners}
        for name, method in METHODS.items():
            ways: list[Callable[[str, str], str]] = [
                lambda who, thread, m=method: reason_of(through[who], m, request_of(m, thread), None)  # type: ignore[misc]
            ]
            if name in STREAMED:
                ways.append(
                    lambda who, thread, n=name: streamed_reason(  # type: ignore[misc]
                        through[who], n, request_of(METHODS[n], thread), None
                    )
                )
            for way in ways:
                for who in owners:
                    verbs = set() if who == "elsewhere" else set(who.partition(".")[0].split("-"))
                    if who == "all" or (asked_by(name).verbs <= verbs and name in RULES):
                        continue  # it would be done
                    found = way(who, "t")
                    assert (found == "PERMISSION_DENIED") is not (asked_by(name).verbs <= verbs), (name, who, found)
                    assert found != "UNAUTHENTICATED"
                found = way(right_for(name), "never")
                assert found == way("all", "never")
                assert found not in ("PERMISSION_DENIED", "UNAUTHENTICATED", "StatusCode.UNKNOWN")


def test_its_modes_are_those_of_all_sockets(place: Place) -> None:
    """For owner and group, whether it is there from the start or comes later; and its directories let the group
    through."""
    later = place.directory / "deep" / "er" / "b.sock"
    place.write(principal("a", socket=f"unix://{place.directory}/early/a.sock"))
    with run_daemon(place.directory / "data", access=place.file):
        place.write(
            principal("a", socket=f"unix://{place.directory}/early/a.sock"), principal("b", socket=f"unix://{later}")
        )
        wait_until(lambda: answers(f"unix://{later}"))
        for path in (place.directory / "early" / "a.sock", later):
            for each in (path, path.with_name(path.name + "~")):
                assert stat.S_IMODE(each.lstat().st_mode) == 0o660, each
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
        assert stat.S_IMODE(later.parent.parent.stat().st_mode) == 0o750
        assert stat.S_IMODE((place.directory / "data").stat().st_mode) == 0o700


def test_the_group_of_the_directory_is_kept(place: Place) -> None:
    """Who sets the group of a directory (and its bit) says once which group has the sockets, at each start and after
    each change of the file."""
    if os.getuid():
        pytest.skip("only root may give a directory to another group")
    folder = place.directory / "agents"
    folder.mkdir()
    os.chown(folder, -1, 4242)
    folder.chmod(0o2750)
    later = folder / "new" / "b.sock"
    place.write(principal("a", socket=f"unix://{folder}/a.sock"))
    with run_daemon(place.directory / "data", access=place.file):
        place.write(principal("b", socket=f"unix://{later}"))
        wait_until(lambda: answers(f"unix://{later}"))
        assert (later.lstat().st_gid, later.parent.stat().st_gid) == (4242, 4242)
        assert stat.S_IMODE(later.parent.stat().st_mode) == 0o2750
        wait_until(lambda: not (folder / "a.sock").exists())


def test_sockets_come_and_go_with_the_file(place: Place, wire: str) -> None:
    """Without a restart. Streams through a socket that goes end within two seconds, with nobody calling; those of
    others go on, and nothing of the socket is left."""
    place.write(place.own("a"), place.own("b"))
    with run_daemon(place.directory / "data", access=place.file) as daemon, ExitStack() as stack:
        a, b = (stack.enter_context(Client(place.url(name), namespace="team", retry_timeout=0)) for name in "ab")
        a.thread("t").append("m", 1)
        gone, stays = (stack.enter_context(each.thread("t").watch()) for each in (a, b))
        place.write(place.own("b"), place.own("c"))
        with pytest.raises(Unauthenticated, match="the socket of this stream was taken away"):
            next(gone)
        wait_until(lambda: answers(place.url("c")))
        wait_until(lambda: not place.path("a").exists() and not place.path("a").with_name("a.sock~").exists())
        with pytest.raises(StatewardError):
            a.thread("t").hydrate()
        assert not answers(place.url("a"))
        b.thread("t").append("m", 2)
        assert next(stays)
        place.write(place.own("a"), place.own("b"))
        wait_until(lambda: answers(place.url("a")))
        wait_until(lambda: not place.path("c").exists())
        daemon.stop()
        assert {each.name for each in place.directory.glob("*.sock*")} == set()


def test_a_socket_goes_to_another_principal(place: Place, wire: str) -> None:
    """In one change of the file. A connection that was open is the new principal's, and may no longer what the old one
    might."""
    place.write(principal("old", ["read,write team/*"], socket=place.url("s")))
    with run_daemon(place.directory / "data", access=place.file), ExitStack() as stack:
        client = stack.enter_context(Client(place.url("s"), namespace="team"))
        wait = wait_for_the_end_of_a_writer(client, stack)
        place.write(principal("new", ["read team/*"], socket=place.url("s")))
        with pytest.raises(PermissionDenied, match=r"new (has lost the grant|may not write)"):
            wait()
        with pytest.raises(PermissionDenied, match="new may not write"):
            client.thread("w").append("m", 2)
        assert client.thread("w").hydrate().version > 0
        assert answers(place.url("s"))


def _end_of(call: Iterable[object]) -> str:
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return reason_in(error)
    return ""


def test_those_of_a_daemon_that_was_killed_are_replaced(place: Place, wire: str) -> None:
    """And those of one that was stopped are gone."""
    place.write(place.own("a"))
    with run_daemon(place.directory / "data", access=place.file) as daemon:
        daemon.kill()
        assert place.path("a").exists()
        daemon.start()
        assert answers(place.url("a"))
        daemon.stop()
        assert not place.path("a").exists()
        assert not place.path("a").with_name("a.sock~").exists()


def test_health_reflection_and_drain_follow(place: Place) -> None:
    """Probes need no token here either; an operator drains through its own socket, and who is told by the daemon
    whether it is ready is told the same everywhere."""
    place.write(place.own("a"), place.own("operator", EVERYTHING))
    with run_daemon(place.directory / "data", access=place.file) as daemon, ExitStack() as stack:
        channel = stack.enter_context(grpc.insecure_channel(place.url("a").replace("unix://", "unix:")))
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service="readiness")
        assert health.Check(asked, timeout=60).status == health_pb2.HealthCheckResponse.SERVING
        (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=60
        )
        assert "stateward.v1.ThreadService" in {each.name for each in answer.list_services_response.service}
        with (
            Client(place.url("a"), namespace="team", retry_timeout=0) as a,  # a daemon that drains may come back
            Client(place.url("operator")) as operator,
        ):
            with pytest.raises(PermissionDenied):
                a.drain()
            operator.drain()
            with pytest.raises(StatewardError, match="drain"):
                a.thread("t").append("m", 1)
        assert health.Check(asked, timeout=60).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert daemon.stop() == 0


def test_without_frames_there_are_none_beside(place: Place) -> None:
    place.write(place.own("a"))
    with run_daemon(place.directory / "data", access=place.file, no_frames=True):
        place.write(place.own("a"), place.own("b"))
        wait_until(lambda: answers(place.url("b")))
        assert {each.name for each in place.directory.glob("[ab].sock*")} == {"a.sock", "b.sock"}


@pytest.mark.parametrize(
    ("match", "urls"),
    [
        ("its socket is that of 'p0', too", ("unix:///run/x/a.sock", "unix:///run/x/a.sock")),
        ("its socket is that of 'p0', too", ("unix:///run/x/a.sock", "unix:///run//x/./a.sock")),
        ("has its frames at", ("unix:///run/x/a.sock", "unix:///run/x/a.sock~")),
        ("has its frames at", ("unix:///run/x/a.sock~", "unix:///run/x/a.sock")),
        ("is one of --listen", ("unix:///run/x/all.sock",)),
        ("is one of --listen", ("unix:///run/x/all.sock~",)),
        ("is one of --listen", ("unix:///run/x/al",)),
        ("is no address of a socket", ("/run/x/a.sock",)),
        ("is no address of a socket", ("unix:run/a.sock",)),
        ("is no address of a socket", ("unix:////run/a.sock",)),
        ("is no address of a socket", ("unix:///run/../a.sock",)),
        ("is no address of a socket", ("unix:///run/a\\u0000b",)),
        ("is no address of a socket", ("127.0.0.1:7000",)),
        ("names no socket", ("unix:///",)),
        ("longer than 107 bytes", ("unix:///" + "a" * 107,)),
        ("is no text", (17,)),
        ("one too many", tuple(f"unix:///run/x/{number}" for number in range(SOCKETS_MAX + 1))),
    ],
)
def test_a_wrong_socket_is_refused_before_it_counts(tmp_path: Path, match: str, urls: tuple[object, ...]) -> None:
    """The whole file is, and the message says which principal and why."""
    path = tmp_path / "access.toml"
    path.write_text("".join(principal(f"p{number}", socket=url) for number, url in enumerate(urls)))
    taken = frozenset(map(Path, ("/run/x/all.sock", "/run/x/all.sock~", "/run/x/al~")))
    with pytest.raises(StartError, match=match) as refused:
        read_access_file(path, taken)
    assert f"principal {len(urls)}" in refused.value.message


def test_one_principal_may_have_several(place: Place) -> None:
    """So that its clients can change from one to the next."""
    place.write(principal("a", socket=[place.url("a"), place.url("a2")], token_sha256=digest_of("a" * 40)))
    with run_daemon(place.directory / "data", access=place.file) as daemon:
        for target, token in ((place.url("a"), None), (place.url("a2"), None), (daemon.target, "a" * 40)):
            with Client(target, token=token, namespace="team") as client:
                client.thread("t").append("m", 1)


def test_a_change_to_a_wrong_socket_changes_nothing(place: Place) -> None:
    """The log says which line to look at, and what the file said before goes on."""
    place.write(place.own("a"))
    with run_daemon(place.directory / "data", access=place.file) as daemon:
        place.write(principal("a", socket=place.url("b")), principal("b", socket=daemon.target))
        wait_until(lambda: "the access file cannot be used" in daemon.stderr)
        assert answers(place.url("a"))
        assert not place.path("b").exists()


def test_something_in_the_way_of_a_start_is_not_removed(place: Place) -> None:
    """The daemon does not start, and says what to do."""
    place.write(place.own("a"))
    place.path("a").write_text("mine")
    line = start(place.directory, "--access", str(place.file)).line
    assert f'socket = "{place.url("a")}" of the access file' in line
    assert "not a socket" in line
    assert place.path("a").read_text() == "mine"


def test_something_in_the_way_of_a_change_is_told_and_waited_for(place: Place) -> None:
    """Everything else of the change counts. When the place is free, the socket is there; until then the doctor says
    so."""
    place.write(place.own("a"))
    place.path("b").write_text("mine")
    with run_daemon(place.directory / "data", access=place.file) as daemon, ExitStack() as stack:
        keeper = stack.enter_context(Client(daemon.target, token=KEEPER))
        assert _verdict(keeper) == "ok"
        place.write(place.own("b"), place.own("c"))
        wait_until(lambda: "cannot be opened" in daemon.stderr)
        wait_until(lambda: answers(place.url("c")))
        wait_until(lambda: not place.path("a").exists())
        assert _verdict(keeper) == "failed"
        assert place.path("b").read_text() == "mine"
        time.sleep(5)  # it is tried again, and said once
        assert daemon.stderr.count("cannot be opened") == 1
        place.path("b").unlink()
        wait_until(lambda: answers(place.url("b")))
        assert _verdict(keeper) == "ok"


def _verdict(client: Client) -> str:
    (found,) = [each for each in client.diagnose(probe_bucket=False).diagnoses if each.check == "sockets"]
    return str(getattr(found.verdict, "name", found.verdict)).lower().removeprefix("verdict_")


def test_a_link_in_its_place_is_not_followed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who may write the directory puts one there between the socket and its mode: what it leads to keeps its
    own."""
    from stateward_sidecar.service.serving import sockets

    secret, path = place.directory / "secret", place.path("a")
    secret.touch(mode=0o600)
    path.symlink_to(secret)
    with pytest.raises((OSError, StartError)):
        sockets._set_mode(path)
    path.unlink()
    path.touch(mode=0o600)
    with pytest.raises(StartError, match="no socket any more"):
        sockets._set_mode(path)
    assert (stat.S_IMODE(secret.stat().st_mode), stat.S_IMODE(path.stat().st_mode)) == (0o600, 0o600)


def test_files_are_left_to_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sockets of principals together accept connections of gRPC for an eighth of the files."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (16384, 16384))
    assert own_connections_max() * SOCKETS_MAX == 16384 // 8
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    assert own_connections_max() == 1


def test_a_busy_connection_of_frames_gets_its_answer(place: Place) -> None:
    """Calls that are under way when their socket goes are answered, and the connection ends behind them."""
    place.write(place.own("a"))
    with run_daemon(place.directory / "data", access=place.file), open_channel(place.url("a"), "frames") as channel:
        waiting = begin(channel, METHODS["Watch"], iter([request_of(METHODS["Watch"], "-")]), None)
        place.write()
        assert _end_of(waiting) == "UNAUTHENTICATED"
        wait_until(lambda: not place.path("a").exists())
        with pytest.raises((grpc.RpcError, FramesGone, OSError)):
            begin(channel, METHODS["GetServerInfo"], iter([request_of(METHODS["GetServerInfo"], "")]), None).result()


def test_connections_of_one_socket_leave_places_to_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers whose processes have no number here, and the same user: each principal has its own places."""
    monkeypatch.setattr(listener, "peer_of", lambda made: Peer(0, 1000, 0))
    monkeypatch.setattr(listener, "OF_ONE_PROCESS_MAX", 2)
    place.write(place.own("a"), place.own("b"))

    def is_taken(name: str, stack: ExitStack) -> bool:
        try:
            stack.enter_context(FramedConnection(f"{place.path(name)}~"))
        except FramesRefused:
            return False
        return True

    with daemon_inside(place.directory, access=str(place.file)), ExitStack() as stack:
        assert [is_taken("a", stack) for _ in range(3)] == [True, True, False]
        assert [is_taken("b", stack) for _ in range(3)] == [True, True, False]


def test_a_socket_that_somebody_else_took_is_left(place: Place) -> None:
    """A daemon that closes a socket removes that of frames only if it is still its own."""
    place.write(place.own("a"))
    with run_daemon(place.directory / "data", access=place.file):
        beside = place.path("a").with_name("a.sock~")
        beside.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(beside))
            place.write()
            wait_until(lambda: not place.path("a").exists())
            assert beside.exists()


def test_the_page_has_a_file_that_can_be_used(tmp_path: Path, repository: Path) -> None:
    """docs/operations.md shows a principal with a socket."""
    page = (repository / "docs/operations.md").read_text()
    (tmp_path / "access.toml").write_text(page.partition("```toml\n# in")[2].partition("```")[0].partition("\n")[2])
    found = read_access_file(tmp_path / "access.toml")
    assert [str(path) for path in found.sockets] == ["/run/stateward/booking/s.sock"]
    assert "STATEWARD_TARGET=unix:///run/stateward/booking/s.sock" in page
