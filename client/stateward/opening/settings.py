"""`daemon.toml`: the settings of the first start by a client, which every later start uses.

The file is one that `stateward-sidecar --config` reads. A first start that failed, for example with a wrong URL
or key, binds nobody: the file is removed, and counts only if the directory has data.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateward.errors import CannotStart, OtherSettings
from stateward.opening.files import read_file
from stateward.opening.places import Place
from stateward.opening.record import DaemonRecord

_HEAD = "# The settings with which stateward.open() starts the daemon. Change them while it does not run.\n"


@dataclass(frozen=True)
class Asked:
    """What a client asks for; "" = whatever the daemon has."""

    archive: str = ""
    key_file: str = ""
    key: str = ""
    token_file: str = ""


def read_asked(archive: str | os.PathLike[str] | None, environment: Mapping[str, str] = os.environ) -> Asked:
    """Returns what an argument and the environment ask for."""
    return Asked(
        archive=_url(os.fspath(archive or environment.get("STATEWARD_ARCHIVE") or "")),
        key_file=_path(environment.get("STATEWARD_KEY_FILE")),
        key=environment.get("STATEWARD_KEY") or "",
        token_file=_path(environment.get("STATEWARD_TOKEN_FILE")),
    )


def read_kept(place: Place) -> dict[str, Any] | None:
    """Returns the kept settings; None if no client has ever started a daemon there. Raises CannotStart."""
    content = read_file(place.settings_file)
    if content is None or not place.has_data:
        return None
    try:
        return tomllib.loads(content.decode())
    except ValueError as error:
        raise CannotStart(f"{place.settings_file} is not TOML: {error}") from None


def check_running(place: Place, record: DaemonRecord, asked: Asked) -> None:
    """Raises OtherSettings if the daemon that runs has another archive, or other files than asked for."""
    if asked.archive and asked.archive != _url(record.archive):
        raise OtherSettings(_differ(place, "archive", asked.archive, record.archive))
    if asked.key_file or asked.key or asked.token_file:
        check_kept(place, asked)


def check_kept(place: Place, asked: Asked) -> None:
    """Raises OtherSettings if the kept settings are not those that are asked for."""
    kept = read_kept(place)
    if kept is None:
        return
    has = {"archive": _url(str(kept.get("archive", ""))), "key": str(kept.get("key", ""))}
    has["key_file"] = str(kept.get("key_file", "" if has["key"] else place.key_file))
    has["token_file"] = str(kept.get("token_file", ""))
    for name, found in has.items():
        wanted = getattr(asked, name)
        if wanted and wanted != found:
            raise OtherSettings(_differ(place, name, wanted, found))


def keep(place: Place, asked: Asked, listen: str, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Returns the settings of a start. Writes them if this is the first one. Raises CannotStart, and OtherSettings."""
    check_kept(place, asked)
    kept = read_kept(place)
    if kept is not None:
        return kept
    kept = _given_file(environment)
    kept |= {name: value for name, value in vars(asked).items() if value}
    usual = {} if kept.get("key") else {"key_file": str(place.key_file)}
    kept = {**usual, **kept, "listen": listen}
    temporary = place.settings_file.with_name(f".daemon.toml.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(_HEAD + "".join(f"{name} = {_toml(value)}\n" for name, value in kept.items()))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(place.settings_file)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise CannotStart(f"cannot write {place.settings_file}: {error.strerror}") from None
    return kept


def forget(place: Place) -> None:
    """Removes the settings of a first start that failed: the next one may ask for others."""
    with suppress(OSError):
        place.settings_file.unlink()


def _given_file(environment: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the file that STATEWARD_CONFIG names."""
    given = environment.get("STATEWARD_CONFIG")
    if not given:
        return {}
    try:
        return tomllib.loads(Path(given).read_text())
    except (OSError, ValueError) as error:
        raise CannotStart(f"STATEWARD_CONFIG: cannot read {given}: {error}") from None


def _differ(place: Place, name: str, wanted: str, found: str) -> str:
    return (
        f"{name} {wanted} is asked for, and the daemon of {place.data_dir} has {found or 'none'}; ask for that, give "
        f"another data_dir, or stop the daemon and change {place.settings_file}"
    )


def _url(text: str) -> str:
    if text and "://" not in text:
        text = Path(text).expanduser().absolute().as_uri()
    return text.rstrip("/")


def _path(text: str | None) -> str:
    return str(Path(text).expanduser().absolute()) if text else ""


def _toml(value: Any) -> str:
    """A value in TOML. Texts of JSON are texts of TOML, except for surrogate pairs and for DEL."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
