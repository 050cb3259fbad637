"""The daemon's settings: file < environment < flags. Values only; components are made in ``app``.

Every setting has one name: ``--data-dir`` is ``STATEWARD_DATA_DIR`` in the environment and ``data_dir`` in the file
(TOML). An unknown or invalid setting stops the start with one line.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stateward._version import VERSION
from stateward_sidecar.addresses import LOOPBACK, PORT_MAX, Guards
from stateward_sidecar.errors import StartError

KEY_KINDS = ("file", "env", "command", "awskms", "vault")
DURABILITIES = ("committed", "archived")
LOG_FORMATS = ("auto", "console", "text", "json")
_LISTEN_HELP = (
    "unix:///path, host:port?tls, or 127.0.0.1:port in plain text; a port without --tls-client-ca needs "
    "--exposed-port; may be given several times (default: $XDG_RUNTIME_DIR/stateward/stateward.sock, else "
    "/run/stateward/stateward.sock, or /tmp/stateward-UID/stateward.sock for users who may not write /run; on macOS "
    "$TMPDIR instead of /run)"
)
_ARCHIVE_HELP = (
    "URL of the object storage that outlives this machine: s3://bucket/prefix, gs://..., az://..., or "
    "file:///directory; credentials come from the environment"
)
_KEY_HELP = (
    "the file of the key that protects all others, short for --key file:FILE; made if there is no key file and no "
    "data, here or in the archive (default: $XDG_CONFIG_HOME/stateward/key)"
)
_KEY_SOURCE_HELP = (
    "where the key comes from: file:PATH; env:NAME, a variable; command:PROGRAM ..., what it prints; awskms:PATH or "
    "vault:PATH, a wrapped key file, which that service opens"
)
HEALTH_NAMES = ("readiness", "liveness")
LEVELS = ("debug", "info", "warning", "error")
RUN, TMP = Path("/run"), Path("/tmp")  # noqa: S108  a directory of this user's own is made there
MIB = 1 << 20
MAP_BYTES_MIN = 1 * MIB
SIZE_MAX = 64 << 40
STATE_BYTES_MAX = 1 << 30
# The interpreter with all modules needs this much.
MEMORY_BYTES_MIN = 64 * MIB
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": MIB, "GIB": 1 << 30, "TIB": 1 << 40}
_TIME_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where the key comes from."""

    kind: str
    """One of ``KEY_KINDS``."""
    value: str
    """A path, the name of a variable, or a command."""

    @property
    def path(self) -> Path | None:
        """The file; None if there is none."""
        return None if self.kind in ("env", "command") else Path(self.value)

    def __str__(self) -> str:
        """Says it to people. A command may have secrets behind its name."""
        if self.kind == "env":
            return f"the variable {self.value}"
        if self.kind == "command":
            return f"the command {self.value.split()[0]}"
        return f"the key file {self.value}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that the daemon starts with."""

    data_dir: Path
    listen: tuple[str, ...]
    has_frames: bool  # beside each unix socket
    key: KeySource
    token_file: Path | None  # None = calls need no token
    access_file: Path | None  # who may do what; None = whoever may call may do everything
    tls_cert: Path | None  # None = no port has TLS; then there is no key, either
    tls_key: Path | None
    tls_client_ca: Path | None  # None = clients need no certificate
    is_exposed: bool  # whether strangers may connect to a port
    allows_exposed: bool  # whether modes of files with secrets mean nothing
    default_durability: str
    owner_id: str
    grace_s: float
    map_bytes: int
    memory_bytes: int  # 0 = what the control group and the machine allow
    cache_bytes: int  # 0 = derived from the memory limit
    max_state_bytes: int
    max_workspace_bytes: int
    sweep_interval_s: float
    held_for_s: float  # how long a held thread stays open after its last call
    log_level: str
    log_format: str
    archive: str  # its URL; empty = none
    archive_must_exist: bool
    archive_put_back: bool
    archive_interval_s: float
    archive_puts_per_s: float
    archive_lease_s: float
    archive_check_s: float
    accept_local_key: bool
    metrics: tuple[str, int] | None  # host and port; None = off
    traces: str  # URL of the collector; empty = off
    idle_exit_s: float  # 0 = off
    log_file: Path | None  # None = standard error
    audit_log: Path | None  # None = security events are in the log only
    is_debuggable: bool
    ready_fd: int | None  # None = nobody waits there


def default_socket(environment: Mapping[str, str], platform: str = sys.platform) -> str:
    """Returns the default socket: in the runtime directory, else in /run/stateward, else in a directory of this user's
    own, if the user may not write /run. All languages look there.

    macOS has no /run. Its TMPDIR belongs to one user, as a runtime directory does.
    """
    runtime = environment.get("XDG_RUNTIME_DIR") or (platform == "darwin" and environment.get("TMPDIR"))
    if runtime:
        return f"unix://{runtime.rstrip('/')}/stateward/stateward.sock"
    shared = RUN / "stateward"
    may_write = os.access(shared if shared.exists() else RUN, os.W_OK | os.X_OK)
    return f"unix://{shared if may_write else private_directory()}/stateward.sock"


def private_directory() -> Path:
    """Returns the directory for the socket of a user who may not write /run."""
    return TMP / f"stateward-{os.geteuid()}"


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the flags, with their help."""
    parser = argparse.ArgumentParser(
        prog="stateward-sidecar",
        description="Keeps the state of agents: takes checkpoints over gRPC and stores them durably,\n"
        "encrypted and small.",
        epilog="Every flag can be set in the environment (STATEWARD_DATA_DIR for --data-dir; several\n"
        "--listen separated by commas) or in the --config file (data_dir = ...). Flags override\n"
        "the environment, and the environment overrides the file. Sizes accept KiB, MiB, GiB,\n"
        "TiB. Times accept ms, s, m, h, d, and are seconds without a unit.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", metavar="FILE", help="settings file, in TOML")
    add("--data-dir", metavar="DIR", help="directory of the data (default: $XDG_DATA_HOME/stateward)")
    add("--listen", metavar="URL", action="append", help=_LISTEN_HELP)
    add(
        "--no-frames",
        action="store_const",
        const="yes",
        help="make no second socket beside each unix socket: programs of this host then speak gRPC, which is slower",
    )
    add("--key-file", metavar="FILE", help=_KEY_HELP)
    add("--key", metavar="SOURCE", help=_KEY_SOURCE_HELP)
    add(
        "--token-file",
        metavar="FILE",
        help="file with tokens, one a line: every call must carry one of them; read again when it changes "
        "(default: calls need no token)",
    )
    add(
        "--access",
        metavar="FILE",
        help="file of principals, in TOML: who may call, and what each of them may do; read again when it changes "
        "(default: whoever may call may do everything)",
    )
    add(
        "--tls-cert",
        metavar="FILE",
        help="the daemon's certificate in PEM, with the chain to its CA, for ports with ?tls; read again for new "
        "connections when it changes, as the two files below are",
    )
    add("--tls-key", metavar="FILE", help="the key of --tls-cert, in PEM without a password")
    add(
        "--tls-client-ca",
        metavar="FILE",
        help="certificates in PEM that sign those of clients: nobody connects to a port with ?tls without such a "
        "certificate, and --access may name who has which (default: clients need none)",
    )
    add(
        "--exposed-port",
        action="store_const",
        const="yes",
        help="allow a port to which strangers can connect: one without TLS, or without --tls-client-ca",
    )
    add(
        "--allow-exposed-secrets",
        action="store_const",
        const="yes",
        help="start although everybody can read the key, the tokens, the access file or the TLS key, or write the data "
        "directory: for file systems without modes",
    )
    add("--archive", metavar="URL", help=_ARCHIVE_HELP)
    add(
        "--archive-must-exist",
        action="store_const",
        const="yes",
        help="start only if the archive exists already, and never make one: protects against a wrong URL",
    )
    add(
        "--archive-put-back",
        action="store_const",
        const="yes",
        help="restore the archive's _format and _keys/root if they were lost; needs a --data-dir that has joined it",
    )
    add(
        "--archive-interval",
        metavar="TIME",
        help="how often a busy thread is archived; never more rarely than twice in a lease (default: 1)",
    )
    add(
        "--archive-puts",
        metavar="N",
        help="archive writes per second, for all threads together; saves that wait for the archive do not wait for "
        "this, and no thread waits for longer than a quarter of a lease (default: 50)",
    )
    add(
        "--archive-lease",
        metavar="TIME",
        help="how long another sidecar must be idle before this one may take its thread (default: 10, or twice "
        "--archive-interval if that is more)",
    )
    add(
        "--archive-check",
        metavar="TIME",
        help="how old a read of an idle thread of this sidecar may be, in case another sidecar has taken the thread "
        "(default: the lease)",
    )
    add(
        "--accept-local-key",
        action="store_const",
        const="yes",
        help="start with a shared archive although the key file was made here; if it is lost, the archive is lost too",
    )
    add("--default-durability", choices=DURABILITIES, help="durability of saves that ask for none (default: committed)")
    add(
        "--owner-id",
        metavar="NAME",
        help="name of this sidecar for people, in its log and as owner of threads; need not be unique, because data "
        "directories tell sidecars apart (default: host name)",
    )
    add(
        "--grace",
        metavar="TIME",
        help="how long a stop may take, to end running calls and archive the rest (default: 10)",
    )
    add("--map-size", metavar="SIZE", help="how large the data may grow; reserves no disk space (default: 64GiB)")
    add(
        "--memory-limit",
        metavar="SIZE",
        help="memory of the daemon; large requests and answers wait for each other to stay below it "
        "(default: what the control group allows, at most half of the machine's memory)",
    )
    add("--cache-size", metavar="SIZE", help="memory for hot states (default: 64MiB, or an eighth of the memory limit)")
    add("--max-state-size", metavar="SIZE", help="largest state and message (default: 64MiB)")
    add(
        "--max-workspace-size", metavar="SIZE",
        help="how much the trees of files of a thread may take, as stored; 0 = no limit (default: 16GiB)",
    )
    add("--sweep-interval", metavar="TIME", help="how often retention and expiry are applied (default: 30)")
    add(
        "--held-for",
        metavar="TIME",
        help="how long the daemon keeps the key of a held thread after the last call that sent it (default: 10m)",
    )
    add("--log-level", choices=LEVELS, help="debug has a line for each call (default: info)")
    add(
        "--log-format",
        choices=LOG_FORMATS,
        help="console (or text): lines for people; auto: these on a terminal, else JSON (default: auto)",
    )
    add(
        "--metrics",
        metavar="ADDRESS",
        help="address for Prometheus, such as 127.0.0.1:9464; needs the extra `metrics` (default: off)",
    )
    add(
        "--metrics-remote",
        action="store_const",
        const="yes",
        help="allow a --metrics address that other machines reach; metrics name no threads, and need no password",
    )
    add(
        "--traces",
        metavar="URL",
        help="OpenTelemetry collector that takes OTLP over gRPC, such as http://127.0.0.1:4317; needs the extra `otel` "
        "(default: off)",
    )
    add(
        "--idle-exit",
        metavar="TIME",
        help="end when no call ran for this long, nothing waits for the archive, and no client of stateward.open() "
        "lives (default: off)",
    )
    add("--log-file", metavar="FILE", help="log here: up to 5 MiB, and one predecessor, FILE.1 (default: stderr)")
    add(
        "--audit-log",
        metavar="FILE",
        help="append security events here, each with the hash of the one before, for `stateward audit-log check`; "
        "rename the file at any time to begin a new one (default: they are in the log only)",
    )
    add(
        "--debuggable",
        action="store_const",
        const="yes",
        help="let programs of the same user, such as debuggers and profilers, read the daemon's memory, and let a "
        "crash write it to a file: keys and states are in it",
    )
    add(
        "--ready-fd",
        metavar="N",
        type=int,
        help="file descriptor that gets the line `ready TARGET`, or `failed CODE WHY`, and is then closed",
    )
    add("--detach", action="store_true", help="go on in a process of its own, which is no child of the caller")
    add(
        "--health",
        nargs="?",
        const="readiness",
        choices=HEALTH_NAMES,
        help="ask the running daemon whether it is ready, or with liveness only whether it answers, and exit 0 or 1",
    )
    add(
        "--check",
        action="store_true",
        help="examine disk, files, key, bucket and limits without starting, print JSON lines, and exit 0 or 1",
    )
    add("--version", action="version", version=f"stateward-sidecar {VERSION}")
    return parser


_KEY_NAMES = {"key", "key_file"}
_NUMBERS = (
    "grace", "map_size", "memory_limit", "cache_size", "max_state_size", "max_workspace_size", "sweep_interval",
    "held_for",
    "archive_interval", "archive_puts", "archive_lease", "archive_check", "idle_exit",
)  # fmt: skip
NAMES = (
    "data_dir", "listen", "no_frames", "key_file", "key", "token_file", "access", "archive", "default_durability",
    "owner_id", "grace", "map_size", "memory_limit", "cache_size", "max_state_size", "max_workspace_size",
    "sweep_interval", "log_level", "log_format", "held_for",
    "archive_interval", "archive_puts", "archive_lease", "archive_check", "accept_local_key", "archive_must_exist",
    "archive_put_back", "metrics", "metrics_remote", "traces", "idle_exit", "log_file", "audit_log",
    "debuggable",
    "tls_cert", "tls_key", "tls_client_ca", "exposed_port", "allow_exposed_secrets",
)  # fmt: skip


def load_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Settings, bool]:
    """Merges file, environment and flags. Returns the settings, and whether --health was given. Raises StartError."""
    flags = vars(make_parser().parse_args(arguments))
    given = _from_file(flags.get("config") or environment.get("STATEWARD_CONFIG"))
    variables = {name: value for name in NAMES if (value := environment.get(f"STATEWARD_{name.upper()}"))}
    for level in (given.copy(), variables, {name: flags[name] for name in NAMES if flags.get(name) is not None}):
        if len(level.keys() & _KEY_NAMES) > 1:
            raise StartError("--key and --key-file are one setting: give one of them")
        if level.keys() & _KEY_NAMES:  # it takes the place of both
            for name in _KEY_NAMES:
                given.pop(name, None)
        given |= level
    _check_kinds(given)
    _check_tokens(given, flags, environment)
    settings = _settings(given, environment)
    return replace(settings, ready_fd=flags["ready_fd"]), bool(flags["health"])


def _check_tokens(given: Mapping[str, Any], flags: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Refuses the variable of a client's own token beside a file of principals: it also names the file whose tokens may
    do everything, so a token with few rights, or one that was revoked, would have all of them."""
    if given.get("access") and environment.get("STATEWARD_TOKEN_FILE") and flags.get("token_file") is None:
        raise StartError(
            "STATEWARD_TOKEN_FILE is set beside a file of principals (--access): to the daemon it names the file whose "
            "tokens may do everything. Unset it for the daemon; give --token-file if that is what you mean"
        )


def _check_kinds(given: Mapping[str, Any]) -> None:
    """Checks types. A settings file can hold values of any type; flags and variables are text."""
    for name, value in given.items():
        many = name == "listen" and isinstance(value, list) and all(isinstance(item, str) for item in value)
        number = name in _NUMBERS and isinstance(value, int | float) and not isinstance(value, bool)
        if not (isinstance(value, str) or many or number):
            raise StartError(f"{_flag(name)}: {name} = {value!r} in the settings file has the wrong type")


def _from_file(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise StartError(f"cannot read the settings file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartError(f"the settings file {path} is not TOML: {error}") from None
    unknown = sorted(set(values) - set(NAMES))
    if unknown:
        raise StartError(f"the settings file {path} has an unknown setting: {unknown[0]} (known: {', '.join(NAMES)})")
    return values


def _settings(given: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    durability = _choice(given, "default_durability", DURABILITIES, "committed")
    archive = str(given.get("archive") or "")
    if durability == "archived" and not archive:
        raise StartError("--default-durability archived needs an --archive; add one, or use committed")
    for name in ("archive_must_exist", "archive_put_back"):
        if _is_yes(given, name) and not archive:
            raise StartError(f"{_flag(name)} needs an --archive; add one, or leave this flag out")
    home = Path(environment.get("HOME") or "/")
    data_home = Path(environment.get("XDG_DATA_HOME") or home / ".local/share")
    config_home = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    listen = given.get("listen") or default_socket(environment)
    listen = listen.split(",") if isinstance(listen, str) else list(listen)
    data_dir = Path(given.get("data_dir") or data_home / "stateward").absolute()
    key = _key_source(given, config_home / "stateward/key")
    if key.path is not None and key.path.is_relative_to(data_dir):
        raise StartError(
            f"the key file {key.path} is in the data directory; move it elsewhere, or every copy of the data has it"
        )
    map_bytes = _size(given, "map_size", 64 << 30)
    if map_bytes < MAP_BYTES_MIN:
        raise StartError(f"--map-size: {map_bytes} bytes are too few; give at least 1MiB")
    state_bytes = _size(given, "max_state_size", 64 * MIB)
    if not 1 <= state_bytes <= STATE_BYTES_MAX:
        raise StartError(f"--max-state-size: {state_bytes} bytes are out of range; give 1 byte to 1GiB")
    memory_bytes = _size(given, "memory_limit", 0)
    if memory_bytes < MEMORY_BYTES_MIN and "memory_limit" in given:
        raise StartError(f"--memory-limit: {memory_bytes} bytes are too few; give at least 64MiB")
    return Settings(
        data_dir=data_dir, listen=tuple(item.strip() for item in listen),
        has_frames=not _is_yes(given, "no_frames"), key=key,
        access_file=Path(given["access"]).absolute() if given.get("access") else None,
        token_file=Path(given["token_file"]).absolute() if given.get("token_file") else None,
        tls_cert=_file(given, "tls_cert"), tls_key=_file(given, "tls_key"),
        tls_client_ca=_file(given, "tls_client_ca"), is_exposed=_is_yes(given, "exposed_port"),
        allows_exposed=_is_yes(given, "allow_exposed_secrets"),
        default_durability=durability,
        owner_id=str(given.get("owner_id") or socket.gethostname()),
        grace_s=_seconds(given, "grace", 10.0), map_bytes=map_bytes, memory_bytes=memory_bytes,
        cache_bytes=_size(given, "cache_size", 0),
        max_state_bytes=state_bytes, max_workspace_bytes=_size(given, "max_workspace_size", 16 << 30),
        sweep_interval_s=_seconds(given, "sweep_interval", 30.0),
        held_for_s=_seconds(given, "held_for", 600.0),
        log_level=_choice(given, "log_level", LEVELS, "info"),
        log_format=_choice(given, "log_format", LOG_FORMATS, "auto"), archive=archive,
        archive_must_exist=_is_yes(given, "archive_must_exist"),
        archive_put_back=_is_yes(given, "archive_put_back"),
        archive_interval_s=(interval_s := _seconds(given, "archive_interval", 1.0)),
        archive_puts_per_s=_at_least_one(given, "archive_puts", 50.0),
        archive_lease_s=(lease_s := _seconds(given, "archive_lease", max(10.0, 2 * interval_s))),
        archive_check_s=_seconds(given, "archive_check", lease_s),
        accept_local_key=_is_yes(given, "accept_local_key"),
        metrics=_metrics(given),
        traces=_traces(given),
        idle_exit_s=_seconds(given, "idle_exit", 0.0),
        log_file=Path(given["log_file"]).absolute() if given.get("log_file") else None,
        audit_log=_file(given, "audit_log"),
        is_debuggable=_is_yes(given, "debuggable"),
        ready_fd=None,
    )  # fmt: skip


def _key_source(given: Mapping[str, Any], usual: Path) -> KeySource:
    if not given.get("key"):
        return KeySource("file", str(Path(given.get("key_file") or usual).absolute()))
    return parse_source(str(given["key"]))


def parse_source(text: str) -> KeySource:
    """Reads the value of ``--key``. Raises StartError."""
    kind, _, value = text.partition(":")
    if kind not in KEY_KINDS or not value.strip():  # it is not quoted: somebody may have given the key itself
        raise StartError(
            "--key: write file:PATH, env:NAME, command:PROGRAM, awskms:PATH or vault:PATH; the key itself belongs into "
            "none of the settings"
        )
    return KeySource(kind, value.strip() if kind in ("env", "command") else str(Path(value).absolute()))


def _file(given: Mapping[str, Any], name: str) -> Path | None:
    return Path(given[name]).absolute() if given.get(name) else None


def guards_of(settings: Settings) -> Guards:
    """Returns what stands between the daemon's ports and strangers."""
    return Guards(
        has_certificate=settings.tls_cert is not None and settings.tls_key is not None,
        has_client_ca=settings.tls_client_ca is not None,
        has_callers=settings.token_file is not None or settings.access_file is not None,
        is_exposed=settings.is_exposed,
    )


def _metrics(given: Mapping[str, Any]) -> tuple[str, int] | None:
    is_remote, address = _is_yes(given, "metrics_remote"), str(given.get("metrics") or "")
    if not address:
        if is_remote:
            raise StartError("--metrics-remote needs --metrics; add it, or leave this flag out")
        return None
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > PORT_MAX or not host:
        raise StartError(f"--metrics {address}: this is not an address; write for example 127.0.0.1:9464")
    if host not in LOOPBACK and not is_remote:
        raise StartError(
            f"--metrics {address}: other machines reach this address, and everybody there can read the metrics; use "
            "127.0.0.1, or add --metrics-remote"
        )
    return host.strip("[]"), int(port)


def _traces(given: Mapping[str, Any]) -> str:
    url = str(given.get("traces") or "")
    if url and not re.fullmatch(r"https?://[^/@\s]+:\d+/?", url):
        raise StartError(f"--traces {url.rpartition('@')[2]}: write for example http://127.0.0.1:4317")
    return url


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_yes(given: Mapping[str, Any], name: str) -> bool:
    value = str(given.get(name) or "no").strip().lower()
    if value not in ("yes", "no", "true", "false", "1", "0"):
        raise StartError(f"{_flag(name)}: {value!r} is neither yes nor no")
    return value in ("yes", "true", "1")


def _at_least_one(given: Mapping[str, Any], name: str, default: float) -> float:
    try:
        value = float(given.get(name, default))
    except ValueError:
        raise StartError(f"{_flag(name)}: {given[name]!r} is not a number") from None
    if not 1 <= value < float("inf"):
        raise StartError(f"{_flag(name)}: {value:g} is out of range; give at least 1")
    return value


def _choice(given: Mapping[str, Any], name: str, choices: Sequence[str], default: str) -> str:
    value = str(given.get(name, default))
    if value not in choices:
        raise StartError(f"{_flag(name)}: {value!r} is not one of {', '.join(choices)}")
    return value


def _seconds(given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, str):
        found = _NUMBER_WITH_UNIT.fullmatch(value.strip())
        if found is None or found[2] not in _TIME_UNITS:
            raise StartError(f"{_flag(name)}: {value!r} is not a time; write for example 10s or 2m")
        value = float(found[1]) * _TIME_UNITS[found[2]]
    if not 0 <= value < float("inf"):
        raise StartError(f"{_flag(name)}: {value} is out of range; give 0 or more seconds")
    return float(value)


def _size(given: Mapping[str, Any], name: str, default: int) -> int:
    value = given.get(name, default)
    if isinstance(value, int):
        value = str(value)
    found = _NUMBER_WITH_UNIT.fullmatch(str(value).strip())
    if found is None or found[2].upper() not in _UNITS:
        raise StartError(f"{_flag(name)}: {value!r} is not a size; write for example 512MiB")
    size = int(float(found[1]) * _UNITS[found[2].upper()])
    if size > SIZE_MAX:
        raise StartError(f"{_flag(name)}: {value!r} is too large; give at most 64TiB")
    return size


def process_environment() -> Mapping[str, str]:
    """Returns the environment of this process."""
    return os.environ
