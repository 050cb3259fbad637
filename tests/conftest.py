"""What all tests share: where the repository is, hypothesis on a busy machine, and that no process is left behind."""

import gc
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests import places, warm
from tests.processes import MARK, end_marked, sees_hidden

from stateward import testing
from stateward.testing import Daemon

# Two shared cores: how long one example takes says nothing. Failures print the line that reproduces them.
settings.register_profile("stateward", deadline=None, print_blob=True)
settings.load_profile("stateward")

# Keys, tokens and access files that tests write are for them alone: a daemon does not start with others.
os.umask(0o077)

# Some hundred processes are started: each would compile both packages anew, which takes longer than its test. The same
# holds for the tests themselves, whose asserts pytest rewrites.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collecting imports half a million objects and frees none of them.
gc.disable()

# A shell starts its background jobs with SIGINT ignored, and every child process inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The daemons of tests begin imported; tests/warm.py says when they do not.
Daemon._popen = staticmethod(warm.popen)

RUN = os.environ.setdefault(MARK, uuid.uuid4().hex)  # workers have that of their run

# Daemons hide from other programs of their user. Whoever runs the tests without the power to see them all the same
# could not find those that a test has left.
if not sees_hidden():
    os.environ.setdefault("STATEWARD_DEBUGGABLE", "yes")


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Set up first and so torn down last: fails for each process that the tests of this worker left behind."""
    mark = os.environ[MARK] = f"{RUN}.{os.environ.get('PYTEST_XDIST_WORKER', 'main')}."
    yield
    warm.close()
    os.environ[MARK] = RUN
    left = end_marked(mark)
    assert not left, f"tests left processes behind, which were killed now: {left}"


TIMEOUT_S = 300  # as in pyproject.toml


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may take long begins first: else one worker has it still to do when the others have ended."""
    marks = {item: item.get_closest_marker("timeout") for item in items}
    items.sort(key=lambda item: not (mark := marks[item]) or not mark.args or mark.args[0] <= TIMEOUT_S)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """From here on there is garbage. What was imported is none, and no collection looks through it again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Also ends what a worker that died has left."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        end_marked(f"{RUN}.", patience_s=0)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before pytest makes its directories: they are in memory (tests/places.py). Workers have that of their run."""
    if hasattr(config, "workerinput") or config.option.basetemp or config.option.collectonly:
        return
    if (made := places.begin()) is not None:
        config.option.basetemp = str(made / "p")
        config.add_cleanup(lambda: places.end(made))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Daemons that start from here on have their directories in memory, or on the disk."""
    testing._SHORT = places.of(item.path)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of this test, in memory or on the disk."""
    if not places.is_in_memory() or places.of(request.path) != places.DISK:
        yield request.getfixturevalue("tmp_path")
        return
    with tempfile.TemporaryDirectory(prefix="sw-", dir=places.DISK, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parents[1]
