"""The public face: lazy imports, one error for each reason, two clients with the same methods, targets."""

import inspect
import subprocess
import sys

import pytest

import stateward
from stateward import errors
from stateward._async.archive import AsyncArchive
from stateward._io.target import resolve_target
from stateward._sync.archive import Archive
from stateward.v1.error_reason_pb2 import ErrorReason


def test_every_reason_has_an_exception():
    """The table is complete and names nothing that the contract does not."""
    reasons = {name.removeprefix("ERROR_REASON_") for name, _ in ErrorReason.items()} - {"UNSPECIFIED"}
    assert set(errors.BY_REASON) == reasons


def test_every_exception_is_in_the_tree():
    """The drawing at the top of the module names every class."""
    classes = [
        name for name, each in vars(errors).items() if isinstance(each, type) and each.__module__ == errors.__name__
    ]
    assert [name for name in classes if name not in errors.__doc__] == []


def test_contract_does_not_load_the_client():
    """Importing the contract costs no gRPC, and every public name can be had."""
    code = (
        "import stateward.v1.state_pb2, sys; assert 'grpc' not in sys.modules and 'stateward.models' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert all(getattr(stateward, name) is not None for name in stateward.__all__)
    assert set(stateward._HOME_OF) == set(stateward.__all__)
    with pytest.raises(AttributeError):
        stateward.Nothing  # noqa: B018


@pytest.mark.parametrize(
    ("blocking", "asyncio"),
    [
        (stateward.Client, stateward.AsyncClient),
        (stateward.Thread, stateward.AsyncThread),
        (Archive, AsyncArchive),
    ],
)
def test_clients_are_twins(blocking, asyncio):
    """Both clients have the same methods with the same parameters."""

    def surface(kind):
        return {
            name: list(inspect.signature(each).parameters)
            for name, each in vars(kind).items()
            if inspect.isfunction(each) and not name.startswith("_")
        }

    assert surface(blocking) == surface(asyncio)
    assert [name for name in surface(asyncio) if not getattr(asyncio, name).__doc__] == []


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
    assert resolve_target(given, environment) == target


def test_long_socket_paths_are_refused():
    """A path that the system would cut is an error that says so."""
    with pytest.raises(ValueError, match="104"):
        resolve_target("/tmp/" + "x" * 100, {})
