"""What all tests share: where the repository is, hypothesis on a busy machine, and that no process is left behind."""

import gc
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests import warm
from tests.processes import MARK, end_marked

from stateward.testing import Daemon

# Two shared cores: how long one example takes says nothing. Failures print the line that reproduces them.
settings.register_profile("stateward", deadline=None, print_blob=True)
settings.load_profile("stateward")

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


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Set up first and so torn down last: fails for each process that the tests of this worker left behind."""
    mark = os.environ[MARK] = f"{RUN}.{os.environ.get('PYTEST_XDIST_WORKER', 'main')}."
    yield
    warm.close()
    os.environ[MARK] = RUN
    left = end_marked(mark)
    assert not left, f"tests left processes behind, which were killed now: {left}"


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


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parents[1]
