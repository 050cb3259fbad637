"""Who takes part in a run: the echo and Stateward always, each peer where it is installed. Who stays away is named."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import servers
from tests.bench.peers.base import Contender
from tests.bench.peers.file import SyncedFile
from tests.bench.peers.sqlite import SqliteRows, SqliteWhole
from tests.bench.peers.stateward import Echo, EchoBothWays, PythonClient, Stub, Whole
from tests.bench.servers import PeerAbsent, Server

from stateward.testing import Daemon, run_daemon

NO_LIBRARY = "Python library {} not installed: make bench"
# A socket's path may have 104 bytes, and the usual temporary directory can be deep.
_SHORT = Path("/tmp")


@dataclass
class Field:
    """A place for data, running servers, and reasons for those that do not run."""

    work: Path
    """Data of everybody, on one file system."""
    sockets: Path
    echo: Server
    daemon: Daemon
    servers: dict[str, Server] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    with_peers: bool = True

    def versions(self) -> dict[str, str]:
        """Of the servers that run and of SQLite, which is part of Python."""
        return {"SQLite": sqlite3.sqlite_version, **{name: each.version for name, each in self.servers.items()}}

    @contextmanager
    def contenders(self, name: str, *, read: bool = False) -> Iterator[list[Contender]]:
        """All that can take part, with nothing in them that another section put there."""
        found: list[Contender] = [Echo(self.echo.address), Stub(self.daemon.target), PythonClient(self.daemon.target)]
        found.insert(1, SyncedFile(self.work / f"{name}-files"))
        found.insert(1, EchoBothWays(self.echo.address)) if read else found.append(Whole(self.daemon.target))
        if self.with_peers:
            found += [SqliteRows(self.work / f"{name}-rows.sqlite"), SqliteWhole(self.work / f"{name}-whole.sqlite")]
            for open_one in (_postgres_rows, _postgres_whole, _redis_push, _redis_set, _etcd):
                self._admit(found, lambda open_one=open_one: open_one(self))
            self._admit(found, lambda: _langgraph_sqlite(self.work / f"{name}-langgraph.sqlite"))
            self._admit(found, lambda: _langgraph_postgres(self))
        try:
            yield found
        finally:
            for contender in found:
                contender.close()

    @contextmanager
    def own_daemon(self, name: str, **flags: str) -> Iterator[Daemon]:
        """Another Stateward, with an empty directory beside everybody else's. `flags` are further ones of its own."""
        data = self.work / f"stateward-{name}"
        with run_daemon(data_dir=data, **flags) as daemon:
            yield daemon

    def _admit(self, found: list[Contender], open_one: Callable[[], Contender]) -> None:
        """Opens a contender whose server runs and whose library is there."""
        try:
            found.append(open_one())
        except KeyError:
            pass  # its server does not run, which has been said
        except ModuleNotFoundError as missing:
            library = str(missing.name)
            self.skipped[library.replace(".", "-")] = NO_LIBRARY.format(library)


@contextmanager
def open_field(*, with_peers: bool = True) -> Iterator[Field]:
    """Starts everything that is installed, and leaves nothing behind."""
    with ExitStack() as stack:
        work, sockets = (stack.enter_context(_directory(parent)) for parent in (None, _SHORT))
        echo = stack.enter_context(servers.run_echo(sockets))
        starts = {"PostgreSQL": servers.run_postgres, "Redis": servers.run_redis, "etcd": servers.run_etcd}
        running, skipped = dict[str, Server](), dict[str, str]()
        for name, start in starts.items() if with_peers else ():
            place = sockets / "postgres" if name == "PostgreSQL" else sockets
            try:
                running[name] = stack.enter_context(start(work / name.lower(), place))
            except PeerAbsent as reason:
                skipped[name] = str(reason)
        daemon = stack.enter_context(run_daemon(data_dir=work / "stateward"))
        yield Field(work, sockets, echo, daemon, running, skipped, with_peers)


@contextmanager
def _directory(parent: Path | None) -> Iterator[Path]:
    """A directory that another user may pass through, as PostgreSQL's has to."""
    path = Path(tempfile.mkdtemp(prefix="swb-", dir=parent if parent and parent.is_dir() else None))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            print(f"could not remove everything below {path}", file=sys.stderr)


# Libraries of peers are imported only when their server runs: without them the bench works all the same.


def _postgres_rows(here: Field) -> Contender:
    address = here.servers["PostgreSQL"].address
    from tests.bench.peers.postgres import PostgresRows

    return PostgresRows(address)


def _postgres_whole(here: Field) -> Contender:
    address = here.servers["PostgreSQL"].address
    from tests.bench.peers.postgres import PostgresWhole

    return PostgresWhole(address)


def _redis_push(here: Field) -> Contender:
    address = here.servers["Redis"].address
    from tests.bench.peers.redis import RedisPush

    return RedisPush(address)


def _redis_set(here: Field) -> Contender:
    address = here.servers["Redis"].address
    from tests.bench.peers.redis import RedisSet

    return RedisSet(address)


def _etcd(here: Field) -> Contender:
    address = here.servers["etcd"].address
    from tests.bench.peers.etcd import Etcd

    return Etcd(address)


def _langgraph_sqlite(file: Path) -> Contender:
    from tests.bench.peers.langgraph import open_langgraph_sqlite

    return open_langgraph_sqlite(file)


def _langgraph_postgres(here: Field) -> Contender:
    address = here.servers["PostgreSQL"].address
    from tests.bench.peers.langgraph import open_langgraph_postgres

    return open_langgraph_postgres(address)
