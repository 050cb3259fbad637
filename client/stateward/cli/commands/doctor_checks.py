"""What `stateward doctor` looks at: the way to the daemon, versions and clocks, and what the daemon itself finds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateward._version import VERSION
from stateward.admin import Verdict
from stateward.errors import CannotStart, PermissionDenied, StatewardError, Unauthenticated, WrongTarget

if TYPE_CHECKING:
    from stateward import Client
    from stateward.admin import Diagnoses, ServerInfo
    from stateward.opening.places import Place

DIAL_S, CHECK_S = 1.0, 150.0
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# Between two processes of one machine; more means that one of them has another clock.
SKEW_S = 2.0
_VERDICTS = {
    Verdict.OK: "ok", Verdict.WARNING: "warning", Verdict.FAILED: "failed", Verdict.SKIPPED: "skipped",
}  # fmt: skip


@dataclass(frozen=True)
class Item:
    """Something that was examined. `verdict` is ok, warning, failed or skipped."""

    check: str
    verdict: str
    summary: str
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return {
            "check": self.check, "verdict": self.verdict, "summary": self.summary, "advice": self.advice,
            "facts": dict(self.facts),
        }  # fmt: skip


def examine(client: Client, probe_bucket: bool, flags: Sequence[str], opened: Place | None = None) -> list[Item]:
    """Examines everything that can be seen from here. `flags`: where the data of a stopped daemon are; `opened`: its
    place, if clients start it."""
    items = list(check_socket(client.target))
    began = time.monotonic()
    try:
        server = client.server_info()
    except Unauthenticated as error:
        return [*items, _unknown(error), check_package()]
    except StatewardError as error:
        items = _without_daemon(client.target, items, error, opened)
        return [*items, check_package(), *(run_check(flags) if _is_here(client.target) else ())]
    took_s = time.monotonic() - began
    over = f" over {server.wire}" if server.wire else ""
    who = f"; this caller is {server.principal}" if server.principal else ""
    facts = {"answer_ms": took_s * 1e3, "wire": server.wire, "principal": server.principal}
    items.append(Item("daemon", "ok", f"answers within {took_s * 1e3:.1f} ms{over}{who}", facts=facts))
    items += [check_version(server), check_package()]
    try:
        found = client.diagnose(probe_bucket=probe_bucket)
    except PermissionDenied as error:
        advice = "Run the doctor as a principal with the grant `admin */*`, or `stateward-sidecar --check` beside it."
        said = f"the daemon was not asked what it finds: {_one_line(error.message)}"
        return [*items, Item("machine", "warning", said, advice)]
    return [*items, check_clock(found, time.time()), *_of_daemon(found)]


def _without_daemon(target: str, items: list[Item], error: StatewardError, opened: Place | None) -> list[Item]:
    """What is said of socket and daemon if no daemon answers: each reason once."""
    if opened is not None and not isinstance(error, WrongTarget) and not _is_live(opened):
        said = f"no daemon runs for {opened.data_dir}; the next stateward.open() or command starts it"
        return [Item("daemon", "skipped", said)]
    if any(item.verdict == "failed" for item in items):
        return [*items, Item("daemon", "skipped", "it was not reached through this socket")]
    said = _one_line(error.message.partition("; st")[0])
    return [*items, Item("daemon", "failed", said, _how_to_start(target))]


def _unknown(error: Unauthenticated) -> Item:
    """What is said if a daemon answers, and does not tell this caller anything. Nothing else is known of its settings:
    an examination with those of `stateward.open()` would be one of another daemon."""
    return Item(
        "daemon", "failed", f"answers, and does not know this caller: {_one_line(error.message.partition(';')[0])}",
        "Set STATEWARD_TOKEN_FILE to a file with a token of this daemon, of a principal with the grant `admin */*`. "
        "Beside the daemon, `stateward-sidecar --check` with its settings needs none.",
    )  # fmt: skip


def _is_live(place: Place) -> bool:
    from stateward.opening.record import find_live  # noqa: PLC0415  `--help` needs none of it

    try:
        return find_live(place) is not None
    except CannotStart:
        return False


def _of_daemon(found: Diagnoses) -> Iterator[Item]:
    for each in found.diagnoses:
        verdict = _VERDICTS.get(each.verdict, "warning") if isinstance(each.verdict, Verdict) else "warning"
        yield Item(each.check, verdict, each.summary, each.advice, each.facts)


def check_socket(target: str) -> Iterator[Item]:
    """Looks at the daemon's socket in the file system. Yields nothing for a target that is no socket."""
    if not target.startswith("unix://"):
        return
    path = Path(target.removeprefix("unix://"))
    try:
        found = path.lstat()
    except PermissionError:
        yield Item(
            "socket", "failed", f"user {os.geteuid()} may not look into {path.parent}",
            "Run as a user of the daemon's group, or change the directory's mode.",
        )  # fmt: skip
        return
    except OSError:
        yield Item("socket", "failed", f"there is no socket at {path}", _how_to_start(target))
        return
    mode = stat.S_IMODE(found.st_mode)
    facts = {"path": str(path), "owner": found.st_uid, "group": found.st_gid, "mode": f"{mode:04o}"}
    if not stat.S_ISSOCK(found.st_mode):
        yield Item("socket", "failed", f"{path} is no socket", "Give the daemon's socket with --target.", facts)
        return
    faults = list(_socket_faults(path, mode, found, facts))
    yield from faults or [
        Item("socket", "ok", f"{path} is open to user {found.st_uid} and group {found.st_gid}", facts=facts)
    ]


def _socket_faults(path: Path, mode: int, found: os.stat_result, facts: Mapping[str, Any]) -> Iterator[Item]:
    if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        yield Item(
            "socket", "failed",
            f"user {os.geteuid()} may not use {path}: it belongs to user {found.st_uid} and group {found.st_gid}",
            f"Run as one of them, or add your user to group {found.st_gid}.", facts,
        )  # fmt: skip
    elif refused := _dial(path):
        yield Item(
            "socket", "failed", f"nobody listens at {path}: {refused}",
            "The daemon that made it has ended. Start it again; it replaces the socket.", facts,
        )  # fmt: skip
    if mode & stat.S_IWOTH:
        yield Item(
            "socket", "warning", f"{path} has mode {mode:04o}: every user of this machine can read and delete threads",
            f"Run: chmod 660 {path}", facts,
        )  # fmt: skip
    folder = stat.S_IMODE(path.parent.stat().st_mode)
    if folder & stat.S_IWOTH and not folder & stat.S_ISVTX:
        yield Item(
            "socket", "warning", f"{path.parent} has mode {folder:04o}: every user can put another socket in its place",
            f"Run: chmod o-w {path.parent}", facts,
        )  # fmt: skip


def _dial(path: Path) -> str:
    """Why a socket takes no connection; empty if it does."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(DIAL_S)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def check_version(server: ServerInfo) -> Item:
    """Compares this client's version with the daemon's."""
    facts = {"client": VERSION, "daemon": server.version, "format": server.format}
    if server.version == VERSION:
        return Item("version", "ok", f"client and daemon have version {VERSION}", facts=facts)
    older = "client" if _order(VERSION) < _order(server.version) else "daemon"
    return Item(
        "version", "warning", f"the client has version {VERSION}, the daemon {server.version}",
        f"Upgrade the {older}. Daemons first: a newer daemon serves older clients.", facts,
    )  # fmt: skip


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def check_package() -> Item:
    """Looks whether what is imported is what is installed, and names the versions below the stubs."""
    facts = {"stateward": VERSION, "python": sys.version.split()[0]}
    for name in ("grpcio", "protobuf"):
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = "unknown"
    said = ", ".join(f"{name} {version}" for name, version in facts.items())
    try:
        installed = importlib.metadata.version("stateward")
    except importlib.metadata.PackageNotFoundError:
        return Item("package", "ok", said, facts=facts)
    if installed != VERSION:
        return Item(
            "package", "warning", f"version {VERSION} is imported, and {installed} is installed",
            "Install it again, with pip's --force-reinstall. Stubs of one version with code of another fail in odd "
            "ways.", {**facts, "installed": installed},
        )  # fmt: skip
    return Item("package", "ok", said, facts=facts)


def check_clock(found: Diagnoses, now: float) -> Item:
    """Compares this process's clock with the daemon's."""
    skew_s = found.time.timestamp() - now
    facts = {"skew_s": skew_s}
    if abs(skew_s) <= SKEW_S:
        return Item("clock", "ok", "the daemon's clock agrees with this one", facts=facts)
    return Item(
        "clock", "warning", f"the daemon's clock is {skew_s:+.0f} s off this one",
        "Set both machines' clocks by NTP: times of versions, expiry and retention are by the daemon's clock.", facts,
    )  # fmt: skip


def find_kept(data_dir: Path | None, *, has_config: bool) -> tuple[Place | None, dict[str, Any]]:
    """Returns the place and the flags of a daemon that clients have started: those of the data directory's
    `daemon.toml`. None and empty if it has none, or if another settings file is given."""
    from stateward.opening.commands import find_default_place  # noqa: PLC0415  `--help` needs none of it
    from stateward.opening.launch import key_flag  # noqa: PLC0415
    from stateward.opening.places import find_place  # noqa: PLC0415
    from stateward.opening.settings import read_kept  # noqa: PLC0415

    try:
        place = find_default_place() if data_dir is None else find_place(data_dir)
        kept = None if place is None or has_config or os.environ.get("STATEWARD_CONFIG") else read_kept(place)
    except (CannotStart, OSError):  # the examination of the directory says more
        return None, {}
    if place is None or kept is None:
        return None, {}
    return place, {"--config": place.settings_file, "--data-dir": place.data_dir, **key_flag(kept, place)}


def run_check(flags: Sequence[str]) -> Iterator[Item]:
    """Lets `stateward-sidecar --check` examine the machine, because no daemon does."""
    command = [sys.executable, "-m", "stateward_sidecar"]
    if importlib.util.find_spec("stateward_sidecar") is None:
        found = shutil.which("stateward-sidecar")
        if found is None:
            yield Item("machine", "skipped", "no daemon answers, and stateward-sidecar is not installed here")
            return
        command = [found]
    try:
        done = subprocess.run(  # noqa: S603  this package's own program
            [*command, "--check", *flags], capture_output=True, text=True, timeout=CHECK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Item("machine", "skipped", f"stateward-sidecar --check did not end: {_one_line(str(error))}")
        return
    found_any = False
    for line in done.stdout.splitlines():
        found_any = True
        yield _parse(json.loads(line))
    if done.returncode and not found_any:
        said = done.stderr.strip().removeprefix("stateward-sidecar: ") or f"exit code {done.returncode}"
        yield Item(
            "settings", "failed", _one_line(said), "The daemon does not start with these settings; correct them.",
        )  # fmt: skip


def _parse(found: Mapping[str, Any]) -> Item:
    verdict = str(found.get("verdict", "")).removeprefix("VERDICT_").lower()
    return Item(
        str(found["check"]), verdict if verdict in _VERDICTS.values() else "warning", str(found.get("summary", "")),
        str(found.get("advice", "")), found.get("facts", {}),
    )  # fmt: skip


def _is_here(target: str) -> bool:
    """Whether a daemon at this target would run on this machine."""
    return target.startswith("unix:") or target.rpartition(":")[0] in LOOPBACK


def _how_to_start(target: str) -> str:
    if not _is_here(target):
        return "Check the address. A daemon elsewhere listens on a port with TLS, or a tunnel (ssh -L) leads to it."
    from stateward.opening.commands import find_kept_settings  # noqa: PLC0415  `--help` needs none of it

    if (kept := find_kept_settings(target)) is not None:
        return f"stateward.open() and commands without --target start it, with its settings in {kept}"
    listen = target if target.startswith("unix:") else f"{target} --exposed-port"
    return (
        f"Start a daemon: stateward-sidecar --listen {listen}, with the flags that it had before, such as --access; or "
        "let stateward.open() start one"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
