"""The danger: the campaign of kills finds nothing because its ledgers and checks see nothing, and a lost save
passes."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.soak.campaign import Campaign
from tests.soak.check import check_all
from tests.soak.desk import NAMESPACE
from tests.soak.ledger import Book, Known, read_book, read_lines
from tests.soak.life import short_directory
from tests.soak.stage import CampaignStage

from stateward import Effect
from stateward.testing import Daemon, run_daemon

LEDGER_BYTES, TIMEOUT_S = 12_000, 60.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the ledger and the store of an agent that was killed once and went on."""
    directory = tmp_path_factory.mktemp("made")
    ledger = directory / "0.ledger"
    with run_daemon(directory / "data", log_level="warning") as daemon:
        command = [sys.executable, "-m", "tests.soak.agent", daemon.target, "0", "seed", str(ledger), "4"]
        for life in (1, 2):
            agent = subprocess.Popen(command, stdin=subprocess.PIPE)
            end = time.monotonic() + TIMEOUT_S
            while (not ledger.exists() or ledger.stat().st_size < life * LEDGER_BYTES) and time.monotonic() < end:
                time.sleep(0.01)
            if life == 1:
                agent.kill()
            agent.communicate(timeout=TIMEOUT_S)
        daemon.stop()
    return directory


@pytest.fixture
def daemon(made: Path, tmp_path: Path) -> Iterator[Daemon]:
    """On a copy of the store."""
    shutil.copytree(made / "data", tmp_path / "data")
    shutil.copy(made / "data.key", tmp_path / "data.key")
    with run_daemon(tmp_path / "data", log_level="warning") as daemon:
        yield daemon


@pytest.fixture
def book(made: Path) -> Book:
    book = read_book(read_lines(made / "0.ledger"))
    assert not book.failures
    assert book.answered > 20
    return book


def findings(daemon: Daemon, book: Book) -> str:
    return "\n".join(check_all(daemon, [book], random.Random(1)).findings)


def longest(book: Book) -> Known:
    return max(book.threads.values(), key=lambda known: len(known.versions.keys() - known.covered))


def test_nothing_is_found_where_nothing_is_wrong(daemon: Daemon, book: Book) -> None:
    """What an agent did, killed in between, is all there; also after the daemon was killed."""
    assert findings(daemon, book) == ""
    daemon.kill()
    daemon.start()
    assert findings(daemon, book) == ""


def test_whatever_is_wrong_is_found(daemon: Daemon, book: Book) -> None:
    """A version that went, a save nobody asked for, a moved tag, a thread that went and one too much are findings."""
    known = longest(book)
    heads = {known.head(saved.branch) for saved in known.versions.values()}
    lost = min(known.versions.keys() - known.covered - heads - set(known.tags.values()))
    with daemon.client(namespace=NAMESPACE) as client:
        thread = client.thread(known.name)
        thread.prune(versions=[lost])
        assert f"{known.name} version {lost} was answered and is lost" in findings(daemon, book)
        thread.records.put("book/a", "nobody asked for this")
        assert f"{known.name}: records ['book/a'] are not as they were answered" in findings(daemon, book)
        thread.effects.put([Effect("key", "nobody asked for this", anchor="run-0")])
        assert f"{known.name}: results ['run-0 key'] are there" in findings(daemon, book)
        known.effects["run-0 lost"] = "answered"
        assert f"{known.name}: results ['run-0 lost'] are not as they were answered" in findings(daemon, book)
        thread.tags.set("tag-0", at=known.head())
        known.tags["tag-0"] = max(known.versions.keys() - {known.head()})
        assert f"{known.name} tag tag-0 names {known.head()}" in findings(daemon, book)
        thread.append("notes", "nobody asked for this")
        assert f"{known.name} has versions {[known.last + 1]}" in findings(daemon, book)
        assert f"{known.name} branch main is at {known.last + 1}" in findings(daemon, book)
        client.thread("unknown").append("notes", "nor for this")
        assert "thread unknown is there" in findings(daemon, book)
        thread.delete()
        assert f"thread {known.name} is gone" in findings(daemon, book)
        thread.append("notes", "another thread of this name")
        assert f"thread {known.name} is gone" in findings(daemon, book)


def test_another_content_is_found(daemon: Daemon, book: Book) -> None:
    """A state or digest that is not what was answered is a finding."""
    known = longest(book)
    version = min(known.versions.keys() - known.covered)
    saved = known.versions[version]
    known.versions[version] = type(saved)("another hash", saved.digest, saved.branch)
    assert f"{known.name} version {version} has another content" in findings(daemon, book)
    known.versions[version] = type(saved)(saved.hash, "00" * 16, saved.branch)
    assert f"{known.name} version {version} has another digest" in findings(daemon, book)


@pytest.mark.slow
def test_a_short_campaign_finds_nothing(tmp_path: Path) -> None:
    """Twenty seconds of kills, full disks and wrong keys: what the long campaign does works."""
    said: list[str] = []
    with short_directory() as short:
        stage = CampaignStage(tmp_path, short, 5, 3, said.append)
        try:
            Campaign(stage).run(1 / 3)
        finally:
            stage.disk.close()
    assert stage.findings == []
    assert stage.counts["saves answered"] > 0
    assert stage.counts["records compared"] > 0
    assert stage.counts["results compared"] > 0
    assert stage.counts["kills"] > 0
