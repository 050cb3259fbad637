"""The danger: a port that opens wider than the operator meant, or that a stranger can hang."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest
from tests.metrics.scraped import ANY_PORT, find_url, scrape

from stateward.testing import run_daemon
from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import load_settings


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "[::]:9464", "10.1.2.3:9464", "example.org:9464"])
def test_a_wide_address_is_chosen_by_hand(address: str) -> None:
    """Other machines read the metrics only if a second setting says so."""
    with pytest.raises(StartError, match="--metrics-remote"):
        load_settings(["--metrics", address], {"HOME": "/"})
    settings, _ = load_settings(["--metrics", address, "--metrics-remote"], {"HOME": "/"})
    assert settings.metrics == (address.rpartition(":")[0].strip("[]"), 9464)


@pytest.mark.parametrize("address", ["9464", "127.0.0.1", ":9464", "127.0.0.1:http", "127.0.0.1:99999"])
def test_what_is_no_address(address: str) -> None:
    """One line names the flag."""
    with pytest.raises(StartError, match="--metrics"):
        load_settings(["--metrics", address], {"HOME": "/"})


def test_a_choice_without_metrics() -> None:
    """A setting that would do nothing is refused."""
    with pytest.raises(StartError, match="--metrics-remote needs --metrics"):
        load_settings(["--metrics-remote"], {"HOME": "/"})


def test_a_port_in_use() -> None:
    """The daemon does not start, and says which flag is wrong."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=rf"--metrics 127\.0\.0\.1:{port}"):
            run_daemon(metrics=f"127.0.0.1:{port}").__enter__()


def test_only_metrics_are_there() -> None:
    """Other paths and methods get nothing, and a client that sends nothing does not keep the next one out."""
    with run_daemon(metrics=ANY_PORT) as daemon:
        url = find_url(daemon)
        for path, method, code in (("/../etc", "GET", 404), ("/metrics", "POST", 405)):
            request = urllib.request.Request(url.removesuffix("/metrics") + path, method=method, data=None)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=5)
            assert refused.value.code == code
            refused.value.close()
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)):
            assert scrape(daemon)("stateward_ready") == 1


def test_a_page_of_the_web_reads_nothing() -> None:
    """A browser on this machine that was led here by a foreign name (DNS rebinding) gets no metrics."""
    with run_daemon(metrics=ANY_PORT) as daemon:
        url = urlsplit(find_url(daemon))
        own = ["LocalHost", "localhost"]
        own += [f"localhost:{url.port}", f"127.0.0.1:{url.port}", "127.0.0.1", f"[::1]:{url.port}", "[::1]"]
        foreign = ["evil.example", f"evil.example:{url.port}", "127.0.0.1.evil.example", "localhost.evil.example:80"]
        foreign += ["10.0.0.1", "evil.example:", ":", "127.0.0.1:80, evil.example", "127.0.0.1:evil.example"]
        for host in own:
            assert asked_as(url.port, f"Host: {host}\r\n") == "200", host
        for host in foreign:
            assert asked_as(url.port, f"Host: {host}\r\n") == "421", host
        assert asked_as(url.port, "") == "200"  # no browser leaves it out


def test_other_machines_use_any_name() -> None:
    """With --metrics-remote, Prometheus asks by the name that its service has."""
    with run_daemon(metrics=ANY_PORT.replace("127.0.0.1", "0.0.0.0"), metrics_remote=True) as daemon:
        assert asked_as(urlsplit(find_url(daemon)).port, "Host: stateward.monitoring:9464\r\n") == "200"


def asked_as(port: int | None, header: str) -> str:
    """Returns the status of an answer. With HTTP/1.0, so that the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port or 0), timeout=20) as connection:
        connection.sendall(f"GET /metrics HTTP/1.0\r\n{header}\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return answer.split()[1].decode()
