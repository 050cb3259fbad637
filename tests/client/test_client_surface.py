"""The danger: a method is in one client and not in the other, a reason has no exception, or the client looks for
another socket than the daemon has."""

import inspect
import os
import pickle
import re
import subprocess
import sys
from types import FunctionType

import pytest

import stateward
from stateward import errors
from stateward._io import target as target_module
from stateward._io.target import resolve_target
from stateward._operations.reasons import BY_REASON
from stateward._version import VERSION
from stateward.v1.error_reason_pb2 import ErrorReason
from stateward_sidecar import settings
from stateward_sidecar.errors import StartError
from stateward_sidecar.service.serving.sockets import _check_private
from stateward_sidecar.settings import default_socket


def test_every_reason_has_an_exception():
    """The table is complete and names nothing that the contract does not."""
    reasons = {name.removeprefix("ERROR_REASON_") for name, _ in ErrorReason.items()} - {"UNSPECIFIED"}
    assert set(BY_REASON) == reasons


def test_every_exception_is_in_the_tree():
    """The drawing at the top of the module names every class."""
    classes = [name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)]
    assert [name for name in classes if name not in errors.__doc__] == []


def test_contract_does_not_load_the_client():
    """Importing the contract costs no gRPC, and every public name can be had."""
    code = (
        "import stateward.v1.state_pb2, sys; assert 'grpc' not in sys.modules and 'stateward.models' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert all(getattr(stateward, name) is not None for name in stateward.__all__)
    assert dir(stateward) == stateward.__all__ == sorted(stateward.__all__)
    with pytest.raises(AttributeError):
        stateward.Nothing  # noqa: B018


def blocking_word(text: str) -> str:
    """What the blocking client says where the asyncio client says this."""
    text = re.sub(r"\bAsync(?=[A-Z])| at 0x\w+", "", text)  # the second is of a default that is a function
    text = re.sub(r"\b__a(enter|exit|iter|next)__\b", r"__\1__", text)
    return text.replace("asyncio client", "blocking client")


def surface(kind: type) -> dict[str, object]:
    """Public methods and properties of a class, with those that it inherits, and the protocols that Python speaks."""
    members = {name: found for base in reversed(kind.__mro__[:-1]) for name, found in vars(base).items()}
    return {
        name: found
        for name, found in members.items()
        if isinstance(found, (FunctionType, property, classmethod, staticmethod))
        and (not name.startswith("_") or re.fullmatch(r"__(a?enter|a?exit|a?iter|a?next|init|call|eq|len)__", name))
    }


def described(member: object) -> tuple[str, str | None]:
    """Signature and documentation of a method or property, in the words of the blocking client."""
    function = member.fget if isinstance(member, property) else inspect.unwrap(getattr(member, "__func__", member))
    lines = inspect.getdoc(function)
    return blocking_word(str(inspect.signature(function))), lines and " ".join(blocking_word(lines).split())


def returned(member: object) -> set[str]:
    """The names in the type that a method or property returns."""
    function = member.fget if isinstance(member, property) else inspect.unwrap(getattr(member, "__func__", member))
    return set(re.findall(r"\w+", str(inspect.signature(function).return_annotation)))


def pairs() -> dict[type, type]:
    """The asyncio and the blocking form of every class of which a client returns an object, directly or not."""
    found: dict[type, type] = {}
    waiting = [(stateward.AsyncClient, stateward.Client)]
    while waiting:
        asyncio, blocking = waiting.pop()
        if asyncio in found or asyncio is blocking:
            continue
        found[asyncio] = blocking
        for member in surface(asyncio).values():
            function = inspect.unwrap(member.fget if isinstance(member, property) else member)
            for name in returned(member) & function.__globals__.keys():
                kind = function.__globals__[name]
                if isinstance(kind, type) and kind.__module__.startswith("stateward."):
                    home = sys.modules[
                        function.__module__.replace("._async.", "._sync.").replace("._io.aio.", "._io.blocking.")
                    ]
                    waiting.append((kind, getattr(home, blocking_word(name))))
    return found


PAIRS = pairs()


def test_every_returned_object_is_compared():
    """The walk from the clients finds boards, leases, writers, autosave, streams, the archive and logs."""
    assert {kind.__name__ for kind in PAIRS} >= {
        "AsyncArchive",
        "AsyncAutosave",
        "AsyncBeforeStep",
        "AsyncBoard",
        "AsyncClient",
        "AsyncHeldLease",
        "AsyncSaveHandle",
        "AsyncStream",
        "AsyncThread",
        "AsyncThreadLog",
        "AsyncWriter",
        "Decorator",
    }
    public = {name for name in stateward.__all__ if name.startswith("Async")}
    assert public <= {kind.__name__ for kind in PAIRS}


@pytest.mark.parametrize("asyncio", PAIRS, ids=lambda kind: kind.__name__)
def test_clients_are_twins(asyncio):
    """Both clients, and all objects that they return, have the same methods, signatures, types and documentation."""
    blocking = PAIRS[asyncio]
    there, here = surface(asyncio), surface(blocking)
    assert {blocking_word(name) for name in there} == set(here)
    assert blocking.__name__ == blocking_word(asyncio.__name__)
    for name, member in there.items():
        if name == "__call__":
            continue  # the decorator: a coroutine function is no tool of the blocking client
        assert described(member) == described(here[blocking_word(name)]), f"{asyncio.__name__}.{name}"
        assert name.startswith("__") or described(member)[1], f"{asyncio.__name__}.{name} has no documentation"


@pytest.mark.parametrize(
    ("given", "environment", "target"),
    [
        (None, {}, "unix:///run/stateward/stateward.sock"),
        (None, {"XDG_RUNTIME_DIR": "/run/user/1"}, "unix:///run/user/1/stateward/stateward.sock"),
        (None, {"STATEWARD_TARGET": "localhost:7", "XDG_RUNTIME_DIR": "/x"}, "localhost:7"),
        ("/tmp/a.sock", {}, "unix:///tmp/a.sock"),
        ("unix:///tmp/a.sock", {}, "unix:///tmp/a.sock"),
        ("unix:/tmp/a.sock", {}, "unix:///tmp/a.sock"),
        ("[::1]:5", {}, "[::1]:5"),
        ("dns:///host:5", {}, "dns:///host:5"),
    ],
)
def test_targets(given, environment, target):
    """The socket is found where every client finds it."""
    assert resolve_target(given, environment, "linux") == target


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("environment", [{"XDG_RUNTIME_DIR": "/run/user/1"}, {"TMPDIR": "/var/folders/x/T/"}])
def test_client_and_daemon_agree_on_the_socket(environment, platform):
    """Without settings, the client looks where the daemon listens; on macOS that is the user's own TMPDIR."""
    target = resolve_target(None, environment, platform)
    assert target == default_socket(environment, platform)
    assert target.startswith("unix:///var/folders/x/T/stateward/") is (platform == "darwin" and "TMPDIR" in environment)


def test_without_rights_to_run_both_agree_on_a_directory_of_the_user(tmp_path, monkeypatch):
    """The daemon makes a directory in /tmp, and refuses one of others; the client looks there only if it is its user's
    own, because anybody may make one of that name and listen there."""
    run = tmp_path / "run"
    for module in (target_module, settings):
        monkeypatch.setattr(module, "RUN", run)
        monkeypatch.setattr(module, "TMP", tmp_path)
    run.mkdir()
    assert default_socket({}) == resolve_target(None, {}, "linux") == f"unix://{run}/stateward/stateward.sock"
    monkeypatch.setattr(settings.os, "access", lambda path, _mode: path != run)
    own = tmp_path / f"stateward-{os.geteuid()}"
    assert default_socket({}) == f"unix://{own}/stateward.sock"
    assert settings.private_directory() == own
    own.mkdir(mode=0o700)
    (own / "stateward.sock").touch()
    assert resolve_target(None, {}, "linux") == f"unix://{own}/stateward.sock"
    _check_private(own)
    moved = own.rename(tmp_path / "theirs")
    own.symlink_to(moved)
    assert resolve_target(None, {}, "linux") == f"unix://{run}/stateward/stateward.sock"
    with pytest.raises(StartError, match="the directory for the socket"):
        _check_private(own)
    own.unlink()
    moved.rename(own).chmod(0o777)
    assert resolve_target(None, {}, "linux") == f"unix://{run}/stateward/stateward.sock"
    with pytest.raises(StartError, match="mode 0777"):
        _check_private(own)


def test_long_socket_paths_are_refused():
    """A path that the system would cut is an error that says so."""
    with pytest.raises(ValueError, match="104"):
        resolve_target("/tmp/" + "x" * 100, {})


def test_what_a_newcomer_prints():
    """`dir(State)` has nothing of the library's own, a blob is short, the package has its version, and a missing slot
    names those that are there, only when somebody looks."""
    names = {name for name in dir(stateward.State) if not name.startswith("_")}
    assert names == {"answer", "digest", "question", "saving", "status", "version", "waiting"}
    blob = stateward.Blob("image/png", bytes(range(32)), 2_300_000, bytes(1024))
    assert repr(blob) == "Blob('image/png', 2,300,000 bytes, sha256 000102030405…)"
    assert stateward.__version__ == VERSION
    state = stateward.State()
    with pytest.raises(KeyError, match="'goal'; there are no slots"):
        state.slots["goal"]
    state.slots.update({f"s{number:02}": number for number in range(15)})
    with pytest.raises(KeyError, match=r"'goal'; the slots are s00, s01, .*, s11 and 3 more") as found:
        del state.slots["goal"]
    assert found.value.args == ("goal",)
    assert pickle.loads(pickle.dumps(found.value)).args == ("goal",)
    assert state.slots.get("goal", 1) == 1
