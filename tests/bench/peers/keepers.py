"""Programs that keep the files of a directory: git, restic and borg, from Debian's packages.

Each has a repository of its own, and does what its users get without any flag: its syncs, its compression, encryption
where it has one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from tests.bench import servers
from tests.bench.sections.storage import used_bytes
from tests.bench.servers import HOW_TO_INSTALL, PeerAbsent

TIMEOUT_S = 3600


class Keeper(ABC):
    """One way to keep all files of a directory."""

    name: str
    program: str
    syncs: str
    """What is synced to the disk before the program ends, for a note."""

    def __init__(self, place: Path, root: Path) -> None:
        """Makes a repository in `place` for the files below `root`. Raises PeerAbsent."""
        self.place, self.root = place, root
        self._program = servers.find_binary(self.program)
        place.mkdir()
        self._environment = {**os.environ, **self._settings()}
        self._begin()

    @abstractmethod
    def _settings(self) -> dict[str, str]:
        """Variables of its process."""

    @abstractmethod
    def _begin(self) -> None:
        """Makes the repository."""

    @abstractmethod
    def keep(self) -> None:
        """Keeps the files as they are now."""

    @abstractmethod
    def restore(self, target: Path) -> None:
        """Writes what was kept last into an empty directory."""

    @property
    def disk_bytes(self) -> int:
        """What it takes."""
        return used_bytes(self.place)

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        """Runs the program. Raises RuntimeError with what it said."""
        done = subprocess.run(
            [self._program, *map(str, arguments)], cwd=cwd or self.root, env=self._environment, capture_output=True,
            text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{self.program} {' '.join(map(str, arguments))}: {done.stderr[-1000:]}")
        return done.stdout.strip()


class Git(Keeper):
    """`git add -A && git write-tree`; the index is its own, and no hook or setting of the machine counts."""

    name, program = "git", "git"
    syncs = "git: nothing"

    def _settings(self) -> dict[str, str]:
        return {
            "GIT_DIR": str(self.place / "repository"), "GIT_WORK_TREE": str(self.root), "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull, "GIT_AUTHOR_NAME": "bench", "GIT_AUTHOR_EMAIL": "bench",
            "GIT_COMMITTER_NAME": "bench", "GIT_COMMITTER_EMAIL": "bench",
        }  # fmt: skip

    def _begin(self) -> None:
        self.run("init", "-q", "-b", "main")
        self.run("config", "gc.auto", "0")

    def keep(self) -> None:
        self.run("add", "-A")
        self.run("write-tree")

    def commit(self) -> None:
        """Has a commit name what was kept last, as each version of a thread names its tree."""
        self.run("commit", "-q", "--allow-empty", "-m", "step")

    def restore(self, target: Path) -> None:
        self.run("checkout-index", "-a", f"--prefix={target}/")

    def settle(self) -> None:
        """Does what its users do now and then to save space."""
        self.run("gc", "-q", "--prune=now")


class SyncedGit(Git):
    """The same, with every object on the disk before it ends."""

    name = "git, core.fsync=all"
    syncs = "git with core.fsync=all: each object, and the index"

    def _begin(self) -> None:
        super()._begin()
        self.run("config", "core.fsync", "all")

    def restore(self, target: Path) -> None:
        super().restore(target)
        subprocess.run(["sync", "-f", target], check=True)


class Restic(Keeper):
    """`restic backup`, encrypted, as it always is."""

    name, program = "restic", "restic"
    syncs = "restic: each pack of 4 to 16 MB, the index, the snapshot; a restore nothing"

    def _settings(self) -> dict[str, str]:
        cache = self.place.with_name(self.place.name + "-cache")
        return {
            "RESTIC_REPOSITORY": str(self.place), "RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": str(cache),
        }  # fmt: skip

    def _begin(self) -> None:
        self.place.rmdir()
        self.run("init", "-q")

    def keep(self) -> None:
        self.run("backup", "-q", ".")

    def restore(self, target: Path) -> None:
        self.run("restore", "-q", "latest", "--target", target)


class Borg(Keeper):
    """`borg create`, encrypted, with its default compression."""

    name, program = "borg", "borg"
    syncs = "borg: each segment of the repository, and the transaction; a restore nothing"

    def _settings(self) -> dict[str, str]:
        base = self.place.with_name(self.place.name + "-base")
        return {
            "BORG_REPO": str(self.place), "BORG_PASSPHRASE": "bench", "BORG_BASE_DIR": str(base),
            "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
        }  # fmt: skip

    def _begin(self) -> None:
        self._count = 0
        self.run("init", "--encryption", "repokey-blake2")

    def keep(self) -> None:
        self._count += 1
        self.run("create", f"::{self._count}", ".")

    def restore(self, target: Path) -> None:
        self.run("extract", f"::{self._count}", cwd=target)


KEEPERS: tuple[type[Keeper], ...] = (Git, SyncedGit, Restic, Borg)


def open_keepers(work: Path, root: Path, skipped: dict[str, str], only: tuple[type[Keeper], ...]) -> list[Keeper]:
    """Opens those that are installed. Says of others why they are left out."""
    found = list[Keeper]()
    for each in only:
        place = work / f"keeper-{each.__name__.lower()}-{root.name}"
        try:
            found.append(each(place, root))
        except PeerAbsent:
            skipped[each.program] = HOW_TO_INSTALL
    return found


def empty(directory: Path) -> Path:
    """Returns a directory with nothing in it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory
