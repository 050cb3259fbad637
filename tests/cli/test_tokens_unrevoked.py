"""The danger: a token that was revoked goes on, one that was made opens nothing, or the file is lost with an edit."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from pathlib import Path

import pytest
from tests.cli.conftest import run

from stateward import Client
from stateward.errors import PermissionDenied, Unauthenticated
from stateward.testing import run_daemon
from stateward_sidecar.service.admission.accessfile import read_access_file

GRANT = "read,write default/booking-*"


def test_a_new_token_opens_what_its_grant_says_until_it_is_revoked(tmp_path: Path) -> None:
    """The daemon takes the file as the command writes it, and each change of it."""
    file = tmp_path / "access.toml"
    first = run("token", "new", file, "booking", "--grant", GRANT).out.strip()
    boss = run("token", "new", file, "boss", "--grant", "admin */*", "--grant", "read,write */*").out.strip()
    with run_daemon(tmp_path / "data", access=file) as daemon:
        with Client(daemon.target, token=first) as client:
            client.thread("booking-1").append("m", 1)
            with pytest.raises(PermissionDenied):
                client.thread("other").append("m", 1)
            second = run("token", "new", file, "booking").out.strip()
            assert run("token", "revoke", file, "booking", "--digest", digest(file, 0)[:12]).code == 0
            with pytest.raises(Unauthenticated):
                append_for(client, seconds=30)
        for made in (second, boss):
            with Client(daemon.target, token=made) as client:
                client.thread("booking-1").append("m", 3)


def append_for(client: Client, *, seconds: float) -> None:
    """Writes now and then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        client.thread("booking-1").append("m", 2)
        time.sleep(0.1)


def digest(file: Path, number: int) -> str:
    found: str = run("token", "list", file, "--json").json[0]["token_sha256"][number]
    return found


def test_a_principal_with_another_identity_stays(tmp_path: Path) -> None:
    """Its tokens are revoked; the bearer of a JSON Web Token is still who it was."""
    file = tmp_path / "access.toml"
    text = (
        '[[issuer]]\nissuer = "https://i"\naudience = "stateward"\njwks = "/jwks.json"\n\n'
        '[[principal]]\nname = "agent"\n'
        'jwt = { issuer = "https://i", claims = { sub = "a" } }\ngrants = ["read */*"]\n'
    )
    file.write_text(text)
    assert "jwt" in run("token", "list", file).out
    assert run("token", "new", file, "agent").code == 0
    assert len(read_access_file(file)) == 2
    assert run("token", "revoke", file, "agent").code == 0
    assert file.read_text() == text


def test_a_principal_with_a_socket_of_its_own(tmp_path: Path) -> None:
    """It gets no token; the file is as the daemon reads it, and the running daemon opens the socket. Who revokes the
    tokens of a principal is told by what else it is known."""
    file = tmp_path / "access.toml"
    boss = run("token", "new", file, "boss", "--grant", "read */*").out.strip()
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as short, run_daemon(tmp_path / "data", access=file):
        url = f"unix://{short}/agent/s.sock"
        made = run("token", "new", file, "agent", "--grant", GRANT, "--socket", url)
        assert (made.code, made.out) == (0, "")
        assert url in made.err
        end = time.monotonic() + 60
        while not Path(f"{short}/agent/s.sock").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        with Client(url) as client:
            client.thread("booking-1").append("m", 1)
            with pytest.raises(PermissionDenied):
                client.thread("other").append("m", 1)
    assert {str(each): who.name for each, who in read_access_file(file).sockets.items()} == {url[7:]: "agent"}
    assert url in run("token", "list", file).out
    refused = run("token", "revoke", file, "agent")
    assert refused.code == 1
    assert f"known by {url}" in refused.error
    assert run("token", "new", file, "agent").code == 0
    assert url in run("token", "revoke", file, "agent").err
    assert run("token", "revoke", file, "boss").err.count("still") == 0
    for other, said in ((url, "agent already"), (f"{url[:-6]}./s.sock", "agent already"), ("/s.sock", "no address")):
        answer = run("token", "new", file, "other", "--grant", GRANT, "--socket", other)
        assert answer.code == 1
        assert said in answer.error
    assert boss not in file.read_text()
    assert run("token", "list", file, "--json").json[0]["name"] == "agent"


def test_an_edit_keeps_the_rest(tmp_path: Path) -> None:
    """Comments, order, other principals and the mode of the file; no token is in it, and nothing lies beside it."""
    file = tmp_path / "access.toml"
    text = '# who may call\n[[principal]]\nname = "ops"   # on call\nuid = 1000\ngrants = ["read */*"]\n'
    file.write_text(text)
    file.chmod(0o640)
    made = run("token", "new", file, "agent", "--grant", "write team/*")
    assert "keep no copy" in made.err
    assert made.out.strip() not in file.read_text()
    assert file.read_text().startswith(text)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert len(read_access_file(file)) == 2
    listed = run("token", "list", file).out
    words = ("ops", "uid 1000", "agent", digest_of_last(file)[:12], "write team/*")
    assert [word for word in words if word not in listed] == []
    assert run("token", "new", file, "ops").code == 0
    assert run("token", "revoke", file, "ops").code == 0
    assert run("token", "revoke", file, "agent").code == 0
    assert file.read_text().strip() == text.strip()
    assert [each.name for each in tmp_path.iterdir()] == ["access.toml"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_the_daemon_can_still_read_it(tmp_path: Path) -> None:
    """Root edits the file of a daemon that runs as another user, through a link: the link, owner and mode stay."""
    file, link = tmp_path / "access.toml", tmp_path / "link.toml"
    assert run("token", "new", file, "agent", "--grant", GRANT).code == 0
    os.chown(file, 65533, 65532)
    file.chmod(0o640)
    link.symlink_to(file)
    assert run("token", "revoke", link, "agent").code == 0
    found = file.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (65533, 65532, 0o640)
    assert link.is_symlink()
    assert "agent" not in file.read_text()


def digest_of_last(file: Path) -> str:
    found: str = run("token", "list", file, "--json").json[-1]["token_sha256"][-1]
    return found


def test_an_export_of_a_part_says_so(tmp_path: Path) -> None:
    """Who may read some threads only gets these, and is told that a backup may lack others; who may read all, or names
    what it wants, is told nothing."""
    file, kept = tmp_path / "access.toml", tmp_path / "all.jsonl"
    tokens = {name: tmp_path / name for name in ("part", "all")}
    for name, grants in (("part", "read,write default/booking-*"), ("all", "read,write default/*")):
        tokens[name].write_text(run("token", "new", file, name, "--grant", grants).out)
    with run_daemon(tmp_path / "data", access=file) as daemon:
        with Client(daemon.target, token=tokens["all"].read_text().strip()) as client:
            for name in ("booking-1", "other"):
                client.thread(name).append("m", 1)
            assert (client.server_info().principal, client.server_info().reads_part) == ("all", False)

        def export(who: str, *arguments: str) -> str:
            answer = run(
                "--target", daemon.target, "export", "--versions", "-o", kept, *arguments,
                STATEWARD_TOKEN_FILE=str(tokens[who]),
            )  # fmt: skip
            assert answer.code == 0
            return str(answer.err)

        told = "only threads that part may read are in it"
        assert told in export("part", "--all")
        assert "1 thread," in export("part", "--all")
        assert told in export("part", "--prefix", "b")
        assert "may read" not in export("part", "booking-1") + export("all", "--all")


WRONG = {
    "no grant for a new principal": (("new", "FILE", "a"), "--grant"),
    "a grant for a known one": (("new", "FILE", "known", "--grant", GRANT), "leave --grant out"),
    "a wrong grant": (("new", "FILE", "a", "--grant", "look */*"), "is no grant"),
    "a grant without a pattern": (("new", "FILE", "a", "--grant", "read"), "is no grant"),
    "an unknown principal": (("revoke", "FILE", "nobody"), "no principal 'nobody'"),
    "no token": (("revoke", "FILE", "known"), "has no token"),
    "a list of no file": (("list", "/tmp/no-such-access.toml"), "no such file"),
    "another digest": (("revoke", "FILE", "known", "--digest", "ffff"), "begins with ffff"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_changes_nothing(tmp_path: Path, what: str) -> None:
    """It is said in one line."""
    file = tmp_path / "access.toml"
    file.write_text('[[principal]]\nname = "known"\nuid = 1\ngrants = ["read */*"]\n')
    before = file.read_text()
    arguments, said = WRONG[what]
    answer = run("token", *(file if each == "FILE" else each for each in arguments))
    assert answer.code == 1
    assert said in answer.error
    assert file.read_text() == before


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    """It is left as it is."""
    file = tmp_path / "access.toml"
    file.write_text("[[principal")
    answer = run("token", "new", file, "a", "--grant", GRANT)
    assert (answer.code, file.read_text()) == (1, "[[principal")
    assert "is not TOML" in answer.error
