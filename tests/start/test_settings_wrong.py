"""The danger: a misspelt or impossible setting is ignored, or ends in a traceback that does not name it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.start.launch import run, start, write_key

from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import NAMES, load_settings, make_parser

FLAGS: dict[str, tuple[list[str], str]] = {
    "a size that is none": (["--map-size", "huge"], "--map-size"),
    "a map too small": (["--map-size", "100KiB"], "--map-size"),
    "a map larger than numbers": (["--map-size", "99999999999TiB"], "--map-size"),
    "a map larger than the address space": (["--map-size", "8388607TiB"], "--map-size"),
    "a negative size": (["--cache-size", "-1"], "--cache-size"),
    "a state too large": (["--max-state-size", "2GiB"], "--max-state-size"),
    "no number of seconds": (["--grace", "soon"], "--grace"),
    "not a number of seconds": (["--grace", "nan"], "--grace"),
    "a time of an unknown unit": (["--grace", "10 parsecs"], "--grace"),
    "a memory limit that nothing runs in": (["--memory-limit", "1000"], "at least 64MiB"),
    "no memory at all": (["--memory-limit", "0"], "at least 64MiB"),
    "negative seconds": (["--sweep-interval", "-1"], "--sweep-interval"),
    "an unknown level": (["--log-level", "loud"], "--log-level"),
    "an unknown flag": (["--nope"], "--nope"),
    "an archive of nobody": (["--archive", "ftp://bucket"], "s3://bucket/prefix"),
    "an archive with a password": (["--archive", "s3://me:secret@bucket"], "credentials come from the environment"),
    "an archive that must be there": (
        ["--archive", "file:///tmp/no-such-archive", "--archive-must-exist"],
        "no archive at file:///tmp/no-such-archive",
    ),
    "an archive that must be there and has no URL": (
        ["--archive-must-exist"],
        "--archive-must-exist needs an --archive",
    ),
    "what is put back to no archive": (["--archive-put-back"], "--archive-put-back needs an --archive"),
    "an archive that is away": (["--archive", "file:///proc/nowhere"], "cannot use the directory"),
    "an interval that is none": (["--archive-interval", "soon"], "--archive-interval"),
    "a budget of nothing": (["--archive-puts", "0"], "--archive-puts"),
    "archived without archive": (["--default-durability", "archived"], "--default-durability"),
    "all addresses": (["--listen", "0.0.0.0:7700"], "loopback"),
    "all addresses of IPv6": (["--listen", "[::]:7700"], "loopback"),
    "another machine's name": (["--listen", "example.org:7700"], "loopback"),
    "no address": (["--listen", "somewhere"], "--listen"),
    "no port of this world": (["--listen", "127.0.0.1:99999"], "--listen"),
    "a socket path too long": (["--listen", "unix:///tmp/" + "s" * 120], "107 bytes"),
    "a socket where nothing can be": (["--listen", "unix:///proc/none/s.sock"], "/proc/none/s.sock"),
    "a period that is none": (["--idle-exit", "never"], "--idle-exit"),
    "a log where nothing can be": (["--log-file", "/proc/none/log"], "/proc/none/log"),
    "a file that is not there": (["--config", "none.toml"], "none.toml"),
    "a directory as file": (["--config", "."], "settings file"),
}


@pytest.mark.usefixtures("begun_warm")
@pytest.mark.parametrize("name", FLAGS)
def test_a_wrong_flag_is_one_line(short: Path, name: str) -> None:
    """Each wrong flag is refused by name before anything is made."""
    flags, said = FLAGS[name]
    assert said in start(short, *flags).line


def test_a_wrong_flag_of_a_command_is_one_line(short: Path) -> None:
    """So it is where the daemon begins with all its imports: what they print would be on stderr, too."""
    assert "--nope" in start(short, "--nope").line
    assert "cannot use the directory" in start(short, "--archive", "file:///proc/nowhere").line


@pytest.mark.usefixtures("begun_warm")
@pytest.mark.parametrize(
    ("variable", "value"),
    [("MAP_SIZE", "x"), ("GRACE", "x"), ("LOG_LEVEL", "loud"), ("LISTEN", "1.2.3.4:5"), ("CONFIG", "none.toml")],
)
def test_a_wrong_variable_is_one_line(short: Path, variable: str, value: str) -> None:
    """A wrong value in the environment is refused as a flag is."""
    write_key(short / "key")
    command = [sys.executable, "-m", "stateward_sidecar", "--data-dir", "data", "--key-file", "key"]
    ended = run(command, short, {f"STATEWARD_{variable}": value, "XDG_RUNTIME_DIR": str(short)})
    assert value in ended.line


FILES: dict[str, tuple[str, str]] = {
    "not TOML": ("= =", "not TOML"),
    "an unknown setting": ("data_directory = 'x'", "data_directory"),
    "a table": ("[data_dir]\nx = 1", "data_dir"),
    "a number as path": ("data_dir = 5", "data_dir"),
    "a list as key file": ("key_file = []", "key_file"),
    "a number as address": ("listen = 5", "listen"),
    "numbers as addresses": ("listen = [5]", "listen"),
    "a list as size": ("map_size = []", "map-size"),
    "a truth as size": ("max_state_size = true", "max-state-size"),
    "a negative cache": ("cache_size = -5", "cache-size"),
    "a truth as time": ("grace = true", "grace"),
    "a number as level": ("log_level = 5", "log-level"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_settings_file_is_one_line(tmp_path: Path, name: str) -> None:
    """A file that is no TOML, or sets something to a value of another kind, is a StartError that names the setting."""
    content, said = FILES[name]
    path = tmp_path / "settings.toml"
    path.write_text(content)
    with pytest.raises(StartError) as caught:
        load_settings(["--config", str(path)], {"HOME": str(tmp_path)})
    assert said.replace("_", "-") in caught.value.message.replace("_", "-")
    assert "\n" not in caught.value.message


def test_flags_win_over_the_environment_over_the_file(tmp_path: Path) -> None:
    """The order is file, environment, flags."""
    path = tmp_path / "settings.toml"
    path.write_text("grace = 1\nmap_size = '1GiB'\nlog_level = 'error'")
    environment = {"HOME": "/", "STATEWARD_GRACE": "2", "STATEWARD_LOG_LEVEL": "debug", "STATEWARD_CONFIG": str(path)}
    settings, _ = load_settings(["--grace", "3"], environment)
    assert (settings.grace_s, settings.log_level, settings.map_bytes) == (3.0, "debug", 1 << 30)


def test_no_flag_does_nothing() -> None:
    """Every flag of the help is a setting, and the other way round."""
    flags = {action.dest for action in make_parser()._actions}
    assert flags - {"help", "version", "health", "check", "config", "ready_fd", "detach"} == set(NAMES)


@pytest.mark.parametrize(
    ("text", "seconds"), [("3", 3.0), ("2.5", 2.5), ("10s", 10.0), ("250ms", 0.25), ("2m", 120.0), ("1h", 3600.0)]
)
def test_times_are_written_as_elsewhere(text: str, seconds: float) -> None:
    """With a unit as on the command line of `stateward`, or as plain seconds."""
    settings, _ = load_settings(["--grace", text, "--archive-lease", text], {})
    assert (settings.grace_s, settings.archive_lease_s, settings.archive_check_s) == (seconds, seconds, seconds)


def test_a_clients_token_beside_a_file_of_principals_is_refused() -> None:
    """Its variable also names the file whose tokens may do everything. A flag says that this is meant."""
    environment = {"STATEWARD_TOKEN_FILE": "/run/booking.token", "HOME": "/root"}
    with pytest.raises(StartError, match=r"STATEWARD_TOKEN_FILE.*--access"):
        load_settings(["--access", "/run/access.toml"], environment)
    with pytest.raises(StartError, match=r"STATEWARD_TOKEN_FILE.*--access"):
        load_settings([], {**environment, "STATEWARD_ACCESS": "/run/access.toml"})
    settings, _ = load_settings(["--access", "/run/access.toml", "--token-file", "/run/all.tokens"], environment)
    assert settings.token_file == Path("/run/all.tokens")
    settings, _ = load_settings([], environment)
    assert settings.token_file == Path("/run/booking.token")
