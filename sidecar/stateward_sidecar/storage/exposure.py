"""Files with secrets, and the data directory, that too many users of this machine may read or change.

What everybody may read or change stops the start, unless ``--allow-exposed-secrets`` says that modes mean nothing here.
The group may read a secret: an orchestrator has no other way to give one to a process that is not root. A secret that
its group may change is a warning. The group may write the data directory: Kubernetes gives it every right on a volume.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import Settings
from stateward_sidecar.storage.certificates import certificate_files
from stateward_sidecar.storage.wrappedkey import is_wrapped


@dataclass(frozen=True, slots=True)
class Exposure:
    """A file or a directory that too many users may use."""

    path: Path
    said: str
    """What is wrong with it, and what that means."""
    advice: str
    """A command."""
    is_to_all: bool
    """False = to its group only."""

    @property
    def warning(self) -> str:
        """The line of the log."""
        return f"{self.said}. Run: {self.advice}"


@dataclass(frozen=True, slots=True)
class Kind:
    """What lies at a path."""

    name: str
    why: str
    to_all: int = stat.S_IRWXO
    """The rights that nobody but owner and group may have."""
    right: str = "use"


KEY = Kind("key file", "Key and disk together open all data")
WRAPPED_KEY = Kind("wrapped key file", "Without it nobody can open the data", stat.S_IWOTH, "change")
TOKENS = Kind("token file", "A token opens all threads")
ACCESS = Kind("access file", "It says who may do what, and has names that are sealed elsewhere")
TLS_KEY = Kind("TLS key", "Who has it can pass for this daemon")
DATA = Kind("data directory", "Who changes it can destroy all data", stat.S_IWOTH, "change")


def kind_of_key(path: Path | None) -> Kind:
    """Returns what a key file is. A wrapped one has no secret: only its service opens it."""
    return WRAPPED_KEY if path is not None and is_wrapped(path) else KEY


def find_exposure(path: Path, kind: Kind = KEY) -> Exposure | None:
    """Returns how a file or directory is exposed; None = it is not, or it is gone."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None
    what = f"the {kind.name} {path} has mode {mode:04o}"
    if mode & kind.to_all:
        said = f"{what}: every user of this machine can {kind.right} it. {kind.why}"
        return Exposure(path, said, f"chmod o-{'w' if kind.to_all == stat.S_IWOTH else 'rwx'} {path}", is_to_all=True)
    if mode & stat.S_IWGRP and kind is not DATA:
        return Exposure(path, f"{what}: its group can change it. {kind.why}", f"chmod g-w {path}", is_to_all=False)
    return None


def find_exposures(settings: Settings) -> Iterator[Exposure]:
    """Yields what of a daemon with these settings is exposed."""
    tls = certificate_files(settings)
    for path, kind in (
        (settings.key.path, kind_of_key(settings.key.path)), (settings.token_file, TOKENS),
        (settings.access_file, ACCESS), (tls.key if tls is not None else None, TLS_KEY), (settings.data_dir, DATA),
    ):  # fmt: skip
        if path is not None and (found := find_exposure(path, kind)) is not None:
            yield found


def refuse_exposed(settings: Settings) -> None:
    """Raises StartError if everybody may read a secret, or may write the data directory."""
    if settings.allows_exposed:
        return
    for found in find_exposures(settings):
        if found.is_to_all:
            raise StartError(
                f"{found.warning}; or start with --allow-exposed-secrets if its file system has no modes"
            )
