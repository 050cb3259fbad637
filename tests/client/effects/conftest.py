"""An agent whose tools pay."""

import pytest
from tests.client.effects.bank import Bank

from stateward._operations import holder as holders


@pytest.fixture
def bank():
    return Bank()


@pytest.fixture
def target(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon.target


@pytest.fixture
def agent(target, open_client, name, monkeypatch):
    """Starts the agent "worker" (again): what it did before was another process. Gives its thread."""
    starts = iter(range(100))

    def start(**options):
        monkeypatch.setattr(holders, "_incarnation", f"process-{next(starts)}")
        return open_client(target, **{"holder": "worker", **options}).thread(name)

    return start


@pytest.fixture
def thread(agent):
    return agent()
