"""The files that an agent works on: which of them a snapshot has, and what a snapshot is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from stateward._frames import ends_at_the_caller
from stateward.arguments import several, text, whole_number
from stateward.models import Tree
from stateward.v1 import workspace_pb2

LEFT_OUT = (".git", "node_modules", ".venv", "__pycache__", "target", ".next", ".cache")
SECRETS = (".env*", "*.pem", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*")
Git = Literal["head", "status", "whole"]
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


@ends_at_the_caller
@dataclass(frozen=True, kw_only=True)
class Rules:
    """Which files a snapshot has, and how many it may have."""

    left_out: tuple[str, ...] = LEFT_OUT
    """Names, or patterns of names such as "*.log", of files and directories that are left out, at any depth."""
    secrets: tuple[str, ...] = SECRETS
    """The same, for files that usually hold secrets."""
    gitignore: bool = False
    """Whether `.gitignore` files count, too. `.statewardignore` files, which have the same form, always do."""
    max_files: int = 200_000
    """The most files, symlinks and directories. With more the snapshot raises WorkspaceRefused."""
    max_bytes: int | str = "2 GiB"
    """The most bytes of all files together: a number, or a text such as "2 GiB"."""
    max_file_bytes: int | str = "256 MiB"
    """The most bytes of one file."""
    git: Git = "head"
    """What a snapshot has of git. "head" notes the branch and the commit that are checked out, and leaves `.git` out.
    "status" also runs `git status`, with what the repository configures, and notes whether files that git knows differ
    from the commit. "whole" keeps all of `.git`, also what other rules would leave out there."""
    force: bool = False
    """Takes a directory that is refused otherwise: `/`, the home directory and those above it, and a directory that has
    the data of the daemon."""

    def __post_init__(self) -> None:
        for name in ("left_out", "secrets"):
            given = several(getattr(self, name), name, "names")
            object.__setattr__(self, name, tuple(text(each, name) for each in given))
        whole_number(self.max_files, "max_files")
        if self.git not in get_args(Git):
            raise ValueError(f"git is {self.git!r:.100}; it must be one of {', '.join(get_args(Git))}")
        for name in ("max_bytes", "max_file_bytes"):
            object.__setattr__(self, name, size_of(getattr(self, name), name))


def size_of(given: int | str, name: str) -> int:
    """Returns a number of bytes, given as a number or as a text such as "2 GiB". Errors name `name`."""
    if not isinstance(given, str):
        return whole_number(given, name)
    found = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", given)
    if found is None or found[2].upper() not in _UNITS:
        raise ValueError(f'{name} is {given!r:.100}; it must be a number of bytes, or such as "2 GiB"')
    return whole_number(int(found[1]) * _UNITS[found[2].upper()], name)


@dataclass(frozen=True, slots=True)
class GitHead:
    """Where git was: what was checked out when a snapshot was taken."""

    commit: str
    """The id of the commit in hexadecimal; "" = the branch had none yet."""
    branch: str
    """The branch without `refs/heads/`; "" = none was checked out."""
    dirty: bool | None = None
    """Whether files that git knows differed from the commit. None = nobody asked (`Rules(git="status")` does), or git
    could not say."""

    def __str__(self) -> str:
        where = f"branch {self.branch}" if self.branch else "no branch"
        at = f"at {self.commit[:12]}" if self.commit else "without a commit"
        return f"{where} {at}" + {True: ", with changes", False: ", without changes", None: ""}[self.dirty]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that a snapshot does not have."""

    path: bytes
    """Its path from the root. Of a directory, with everything below it, it ends in "/"."""
    reason: str
    """Such as "rule node_modules", or what the system says of a file that cannot be read."""

    def __str__(self) -> str:
        return f"{self.path.decode(errors='backslashreplace')} ({self.reason})"


@dataclass(frozen=True)
class Snapshot:
    """The files of a directory as a snapshot found them. `thread.save(state, workspace=snapshot)` keeps them.

    Save within an hour: the daemon removes what no version names.
    """

    tree: Tree
    """Names the files. Two trees with the same digest are equal."""
    read: int
    """How many files were read. The others have not changed since the last snapshot."""
    read_bytes: int
    sent: int
    """How many objects (directories, and chunks of files) the thread did not have. Few of them travel in the save."""
    sent_bytes: int
    torn: tuple[bytes, ...]
    """Files that changed while they were read, three times in a row. The snapshot has what was read last."""
    left_out: tuple[LeftOut, ...]
    """What the rules leave out, and what could not be read. A restore does not bring it back."""
    collisions: tuple[bytes, ...]
    """Files whose names differ from others only in upper and lower case. Some systems cannot hold both."""
    git: GitHead | None
    """Where git was when the snapshot began; None = no repository was found. The version has it as attributes."""
    namespace: str = field(repr=False)
    thread: str = field(repr=False)
    objects: tuple[workspace_pb2.TreeObject, ...] = field(repr=False)
    """Those that the save takes along."""
    forget: Callable[[], None] = field(repr=False, compare=False)
    """Called if the thread lacks an object of the tree: the next snapshot then asks for all of them."""

    @property
    def files(self) -> int:
        """How many files and symlinks the snapshot has."""
        return self.tree.files
