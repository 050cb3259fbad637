"""The danger: new certificates need a restart, lose a call, or lock everybody out while they are half written."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest
from tests.certificates import Authority, Certified, replace

from stateward import AsyncClient, Client
from stateward._io import tls
from stateward.errors import StatewardError
from stateward.testing import Daemon, run_daemon
from stateward_sidecar.errors import StartError
from stateward_sidecar.service.serving import tls as serving
from stateward_sidecar.service.serving.tls import Tls
from stateward_sidecar.storage.certificates import CertificateFiles, Certificates


class Busy:
    """A blocking and an asyncio client that save, and watch, until they are stopped."""

    def __init__(self, target: str, **options: Any) -> None:
        self._target, self._options = target, options
        self._is_over = threading.Event()
        self.saved = {"blocking": 0, "asyncio": 0}
        self._faults: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in (self._save, self._save_async)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for each in self._threads:
            each.join()

    def go_on(self) -> None:
        """Waits until both have saved again, some looks of the client later."""
        before, until = dict(self.saved), time.monotonic() + 2.5 * tls.LOOK_S
        end = time.monotonic() + 60
        while time.monotonic() < until or any(self.saved[name] < before[name] + 3 for name in before):
            self.check()
            assert time.monotonic() < end, self.saved
            time.sleep(0.05)

    def check(self) -> None:
        """Fails if a call has failed."""
        assert not self._faults, self._faults

    def _run(self, save: Callable[[], None]) -> None:
        try:
            save()
        except BaseException as error:  # noqa: BLE001  shown by `check`
            self._faults.append(error)

    def _save(self) -> None:
        with Client(self._target, **self._options) as client:
            while not self._is_over.is_set():
                client.thread("blocking").append("m", 1)
                self.saved["blocking"] += 1

    def _save_async(self) -> None:
        async def save() -> None:
            async with AsyncClient(self._target, **self._options) as client:
                await client.thread("asyncio").append("m", 1)
                self.saved["asyncio"] += 1
                async with client.thread("asyncio").watch() as watch:
                    while not self._is_over.is_set():
                        await client.thread("asyncio").append("m", 1)
                        self.saved["asyncio"] += 1
                        assert await asyncio.wait_for(anext(watch), 30)

        asyncio.run(save())


def test_no_call_is_lost_when_all_certificates_change(place: Path, ca: Authority, own: Certified, port: int) -> None:
    """Of the daemon and of the client, while both clients save and watch. Later only the new authority counts."""
    mine, target = ca.sign("agent"), f"127.0.0.1:{port}"
    trust = place / "trust.pem"
    replace(trust, ca.path.read_bytes())
    options = {"tls_ca": trust, "tls_cert": mine.cert, "tls_key": mine.key}
    flags = {"tls_cert": own.cert, "tls_key": own.key, "tls_client_ca": trust}
    with run_daemon(place / "data", listen=f"{target}?tls", **flags) as daemon:
        with Busy(target, **options) as busy:
            busy.go_on()
            second = Authority(place, "second")
            replace(trust, ca.path.read_bytes() + second.path.read_bytes())  # both are trusted, then all are renewed
            busy.go_on()
            assert second.sign("agent") == mine
            assert second.sign("daemon") == own
            busy.go_on()
            replace(trust, second.path.read_bytes())
            busy.go_on()
            old = ca.sign("late")
            with (
                Client(target, tls_ca=second.path, tls_cert=old.cert, tls_key=old.key) as client,
                pytest.raises(StatewardError, match="does not accept the certificate"),
            ):
                client.thread("blocking").hydrate()
        busy.check()
        with Client(target, **options) as client:
            for name, count in busy.saved.items():
                assert len(client.thread(name).hydrate().logs["m"]) == count
        assert "read the TLS files again" in daemon.stderr


def test_files_that_are_half_written_replace_nothing(place: Path, ca: Authority, own: Certified, port: int) -> None:
    """A new certificate beside the old key, half a file, and no file: the daemon keeps what it had, and says so. A
    running client keeps its connection."""
    mine, target = ca.sign("agent"), f"127.0.0.1:{port}"
    with ExitStack() as stack:
        daemon = stack.enter_context(
            run_daemon(
                place / "data", listen=f"{target}?tls", tls_cert=own.cert, tls_key=own.key, tls_client_ca=ca.path
            )
        )
        kept = stack.enter_context(Client(target, tls_ca=ca.path, tls_cert=mine.cert, tls_key=mine.key))
        kept.thread("t").append("m", 0)

        def connects() -> None:
            with Client(target, tls_ca=ca.path, tls_cert=aside.cert, tls_key=aside.key) as client:
                client.thread("t").append("m", 1)

        aside = ca.sign("aside")
        whole, new = [path.read_bytes() for path in own], [path.read_bytes() for path in ca.sign("newer")]
        for cert, key, said in (
            (new[0], whole[1], "is not the key of"),
            (whole[0][:100], whole[1], "holds no certificate"),
            (new[0], new[1][:50], "holds no private key"),
        ):
            replace(own.cert, cert)
            replace(own.key, key)
            replace(mine.cert, cert)  # the client's own are spoilt likewise
            replace(mine.key, key)
            connects()
            assert said in daemon.stderr
            time.sleep(1.2 * tls.LOOK_S)
            kept.thread("t").append("m", 2)
        own.key.unlink()
        connects()
        connects()
        assert daemon.stderr.count("cannot read") == 1
        replace(own.cert, new[0])
        replace(own.key, new[1])
        connects()
        assert "read the TLS files again" in daemon.stderr


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "asyncio"])
def test_a_client_connects_with_its_new_files(
    place: Path, ca: Authority, own: Certified, port: int, *, is_async: bool
) -> None:
    """All certificates change while the daemon is away. The same client finds the new daemon, and saves."""
    mine, target, trust = ca.sign("agent"), f"127.0.0.1:{port}", place / "trust.pem"
    replace(trust, ca.path.read_bytes())
    flags = {"tls_cert": own.cert, "tls_key": own.key, "tls_client_ca": trust}
    options: dict[str, Any] = {"tls_ca": trust, "tls_cert": mine.cert, "tls_key": mine.key}

    def turn(daemon: Daemon) -> None:
        daemon.stop()
        second = Authority(place, "second")
        replace(trust, second.path.read_bytes())
        assert (second.sign("agent"), second.sign("daemon")) == (mine, own)
        daemon.start()

    async def play(daemon: Daemon) -> None:
        async with AsyncClient(target, **options) as client:
            await client.thread("t").append("m", 1)
            turn(daemon)
            await client.thread("t").append("m", 2)

    with run_daemon(place / "data", listen=f"{target}?tls", **flags) as daemon:
        if is_async:
            asyncio.run(play(daemon))
        else:
            with Client(target, **options) as client:
                client.thread("t").append("m", 1)
                turn(daemon)
                client.thread("t").append("m", 2)
        with Client(target, **options) as client:
            assert len(client.thread("t").hydrate().logs["m"]) == 2


def test_a_stream_outlives_the_change(place: Path, ca: Authority, own: Certified, port: int) -> None:
    """A watch that was open before goes on in its channel, which ends when it ends: no channel is left behind."""
    mine, target = ca.sign("agent"), f"127.0.0.1:{port}"
    options: dict[str, Any] = {"tls_ca": ca.path, "tls_cert": mine.cert, "tls_key": mine.key}
    flags = {"tls_cert": own.cert, "tls_key": own.key, "tls_client_ca": ca.path}
    with run_daemon(place / "data", listen=f"{target}?tls", **flags), Client(target, **options) as client:
        client.thread("t").append("m", 0)
        connection = client._session.connection
        assert connection is not None
        with client.thread("t").watch() as watch:
            for number in range(1, 4):
                ca.sign("agent")
                time.sleep(1.2 * tls.LOOK_S)
                client.thread("t").append("m", number)
                assert next(watch).sequence == number + 1
            gc.collect()
            assert [used() is not None for used, _ in connection._older].count(True) == 1
        for _ in range(2):
            gc.collect()
            ca.sign("agent")
            time.sleep(1.2 * tls.LOOK_S)
            client.thread("t").append("m", 9)
        assert len(connection._older) <= 2


def test_files_that_count_later_are_looked_at_again(own: Certified, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate of a clock that is ahead begins to be valid without a change of its file."""
    files = CertificateFiles(own.cert, own.key, None)
    used, is_valid, read = Tls(files), False, serving.read_certificates

    def early(files: CertificateFiles) -> Certificates:
        if not is_valid:
            raise StartError("is valid from tomorrow on")
        return read(files)

    monkeypatch.setattr(serving, "read_certificates", early)
    replace(own.cert, own.cert.read_bytes())
    assert used._fetch() is None
    is_valid = True
    assert used._fetch() is not None
    assert used._fetch() is None
