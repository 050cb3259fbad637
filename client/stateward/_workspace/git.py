"""Reads where git is in a directory: its HEAD, and the branch that is checked out. Nothing of `.git` is ever written.

Git itself is not run for that: a repository may name programs that git runs, and its files are those of an agent. Only
`ask_dirty`, which a user chooses, runs git.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

from stateward._workspace.root import file_flags
from stateward.attributes import Attribute
from stateward.workspaces import GitHead

GIT = b".git"
BRANCH, COMMIT, DIRTY = "git-branch", "git-commit", "git-dirty"
"""The attributes of a version that say it."""
HEAD_BYTES_MAX, PACKED_BYTES_MAX = 4096, 64 << 20
PARENTS_MAX, LINKS_MAX, DIRTY_S = 64, 5, 60.0
_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(rb"refs/[^\x00-\x20\x7f~^:?*\[\\]+")
_HEADS = b"refs/heads/"


def read_head(root: bytes) -> GitHead | None:
    """Returns where git is in a directory, or in the nearest one above that has a repository; None = there is none, or
    it is not in a form that is known here."""
    directory = _find(root)
    head = None if directory is None else _read(directory + b"/HEAD", HEAD_BYTES_MAX)
    if directory is None or head is None:
        return None
    if _ID.fullmatch(head):
        return GitHead(head.decode(), "")
    ref = _target(head)
    if ref is None or not ref.startswith(_HEADS) or ref == _HEADS + b".invalid":  # .invalid: refs in another form
        return None
    return GitHead(_resolve(directory, ref).decode(), ref[len(_HEADS) :].decode(errors="backslashreplace"))


def _find(root: bytes) -> bytes | None:
    """Returns the directory that has the HEAD of a working tree."""
    for _ in range(PARENTS_MAX):
        found = root.rstrip(b"/") + b"/" + GIT
        if os.path.isdir(found):  # noqa: PTH112  bytes
            return found
        linked = _read(found, HEAD_BYTES_MAX)
        if linked is not None:
            where = linked.removeprefix(b"gitdir: ")
            return os.path.join(root, where) if where != linked and where else None  # noqa: PTH118  bytes
        above = os.path.dirname(root)  # noqa: PTH120  bytes
        if above == root:
            break
        root = above
    return None


def _resolve(directory: bytes, ref: bytes) -> bytes:
    """Returns the commit of a branch; empty = it has none yet, or it was not found."""
    common = _read(directory + b"/commondir", HEAD_BYTES_MAX)
    shared = os.path.join(directory, common) if common else directory  # noqa: PTH118  bytes
    for _ in range(LINKS_MAX):
        found = _read(shared + b"/" + ref, HEAD_BYTES_MAX)
        if found is None:
            return _packed(shared + b"/packed-refs", ref)
        if _ID.fullmatch(found):
            return found
        further = _target(found)
        if further is None:
            break
        ref = further
    return b""


def _packed(path: bytes, ref: bytes) -> bytes:
    line = rb"^(" + _ID.pattern + rb") " + re.escape(ref) + rb"$"
    found = re.search(line, _read(path, PACKED_BYTES_MAX) or b"", re.MULTILINE)
    return found[1] if found else b""


def _target(data: bytes) -> bytes | None:
    """Returns the ref that a file names; None = it names none."""
    ref = data.removeprefix(b"ref:").strip()
    is_ref = data.startswith(b"ref:") and _REF.fullmatch(ref) is not None
    return ref if is_ref and not {b"", b".", b".."} & {*ref.split(b"/")} else None


def _read(path: bytes, size_max: int) -> bytes | None:
    """Returns the content of a regular file without the end of its last line; None = there is none, or it is larger."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123  bytes
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(size_max + 1)
    except (OSError, ValueError):
        return None
    return None if len(data) > size_max else data.rstrip(b"\r\n")


def ask_dirty(root: bytes) -> bool | None:
    """Runs `git status`, and returns whether files that git knows differ from HEAD; None = git could not say."""
    import subprocess  # noqa: PLC0415  for this alone

    options = ["--no-optional-locks", "-c", "core.fsmonitor=false"]
    command = ["git", *options, "status", "--porcelain", "--untracked-files=no"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(  # noqa: S603  no word of it comes from elsewhere
            command, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=DIRTY_S,
            check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return bool(done.stdout)


def leads_out(directory: int, name: bytes, depth: int) -> bool:
    """Whether a `.git` that is no directory leads to a repository outside the root. `depth` is how many directories lie
    between the root and it."""
    try:
        with open(os.open(name, file_flags(), dir_fd=directory), "rb") as file:  # noqa: PTH123  a descriptor
            data = file.read(HEAD_BYTES_MAX) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return True
    where = data.removeprefix(b"gitdir: ").rstrip(b"\r\n")
    if not data.startswith(b"gitdir: ") or where.startswith(b"/"):
        return True
    for part in where.split(b"/"):
        depth += -1 if part == b".." else part not in (b"", b".")
        if depth < 0:
            return True
    return False


def attributes_of(head: GitHead | None) -> dict[str, Attribute]:
    """Returns the attributes that say where git was."""
    if head is None:
        return {}
    found: dict[str, Attribute] = {COMMIT: head.commit, BRANCH: head.branch}
    found = {key: value for key, value in found.items() if value}
    return found if head.dirty is None else {**found, DIRTY: head.dirty}


def head_of(attributes: Mapping[str, Attribute]) -> GitHead | None:
    """Returns where git was, from the attributes of a version; None = they do not say."""
    commit, branch, dirty = (attributes.get(key) for key in (COMMIT, BRANCH, DIRTY))
    if not (commit or branch):
        return None
    return GitHead(str(commit or ""), str(branch or ""), dirty if isinstance(dirty, bool) else None)
