"""The danger: a version says that it was taken on another commit than it was, and `.git` is lost, or written over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trees.ground import facts

from stateward import Client, GitHead, Rules, Thread
from stateward._workspace.git import read_head
from stateward.errors import RestoreUnfinished
from stateward.testing import Daemon

WHOLE = Rules(git="whole")


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and settings of git of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "test")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "test@example.com")


@pytest.fixture
def thread(daemon: Daemon) -> Iterator[Thread]:
    with Client(daemon.target) as client:
        yield client.thread("t")


def git(root: Path, *words: str) -> str:
    command = ["git", "-c", "protocol.file.allow=always", "-c", "advice.detachedHead=false", "-C", root, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a commit."""
    made = tmp_path / "app"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    return commit(made, "a", "one")


def commit(root: Path, name: str, text: str) -> Path:
    (root / name).write_text(text)
    git(root, "add", name)
    git(root, "commit", "-q", "-m", f"{name}: {text}")
    return root


def said(root: Path) -> tuple[str, str]:
    """Commit and branch, as git says them."""
    command = ["git", "-C", root, "symbolic-ref", "-q", "--short", "HEAD"]
    branch = subprocess.run(command, check=False, capture_output=True, text=True)
    return git(root, "rev-parse", "HEAD"), branch.stdout.strip()


def read(root: Path) -> tuple[str, str] | None:
    found = read_head(os.fsencode(root))
    return None if found is None else (found.commit, found.branch)


def test_what_git_says(root: Path, tmp_path: Path) -> None:
    """On a branch, also with a slash in its name, with packed refs, with none, in a worktree, a submodule, below."""
    assert read(root) == said(root)
    git(root, "checkout", "-q", "-b", "feature/x")
    commit(root, "b", "two")
    assert read(root) == said(root) == (said(root)[0], "feature/x")
    git(root, "pack-refs", "--all")
    assert not (root / ".git/refs/heads/feature/x").exists()
    assert read(root) == said(root)
    commit(root, "b", "three")  # loose again, over the packed one
    assert read(root) == said(root)
    git(root, "checkout", "-q", "--detach", "main")
    assert read(root) == said(root) == (said(root)[0], "")
    git(root, "worktree", "add", "-q", "-b", "beside", str(tmp_path / "beside"))
    commit(tmp_path / "beside", "c", "four")
    assert read(tmp_path / "beside") == said(tmp_path / "beside") != said(root)
    git(root, "pack-refs", "--all")
    assert read(tmp_path / "beside") == said(tmp_path / "beside")
    git(root, "submodule", "add", "-q", str(tmp_path / "beside"), "inner")
    assert read(root / "inner") == said(root / "inner")
    (root / "deep/er").mkdir(parents=True)
    assert read(root / "deep/er") == said(root)


def test_no_commit_and_no_repository(tmp_path: Path) -> None:
    """A branch without a commit has none, and a directory without a repository has nothing."""
    git(tmp_path, "init", "-q", "-b", "fresh", "new")
    assert read(tmp_path / "new") == ("", "fresh")
    git(tmp_path, "init", "-q", "--object-format=sha256", "-b", "main", "long")
    commit(tmp_path / "long", "a", "b")
    assert read(tmp_path / "long") == said(tmp_path / "long")
    (tmp_path / "plain").mkdir()
    above = [each for each in (tmp_path, *tmp_path.parents) if (each / ".git").exists()]
    assert above or read(tmp_path / "plain") is None


@pytest.mark.parametrize(
    "head",
    [b"", b"ref: refs/heads/../../../secret", b"ref: /etc/passwd", b"ref: refs/heads/.invalid", b"0" * 39,
     b"ref: refs/heads/\xff\n", b"x" * 10_000, b"ref: refs/heads/loop"],
)  # fmt: skip
def test_heads_that_are_none(tmp_path: Path, head: bytes) -> None:
    """A HEAD that an agent wrote leads to nothing else, and never hangs."""
    place = tmp_path / "app/.git"
    (place / "refs/heads").mkdir(parents=True)
    (place / "HEAD").write_bytes(head)
    (tmp_path / "secret").write_bytes(b"f" * 40)
    (place / "refs/heads/loop").write_bytes(b"ref: refs/heads/loop")
    found = read_head(os.fsencode(tmp_path / "app"))
    assert found is None or found.commit == ""


@pytest.mark.parametrize("kind", ["fifo", "zero", "directory", "itself"])
def test_things_in_the_place_of_git(tmp_path: Path, kind: str) -> None:
    (tmp_path / ".git").mkdir()  # the search ends here
    root = tmp_path / "app"
    (root / ".git").mkdir(parents=True)
    head = root / ".git/HEAD"
    match kind:
        case "fifo":
            os.mkfifo(head)
        case "zero":
            head.symlink_to("/dev/zero")
        case "directory":
            head.mkdir()
        case "itself":
            head.symlink_to("HEAD")
    assert read_head(os.fsencode(root)) is None


def test_a_version_says_where_git_was(thread: Thread, root: Path) -> None:
    """As attributes, by which versions are found; the caller's own count more. A plan says it, and where git is now."""
    first, main = GitHead(said(root)[0], "main"), said(root)[0]
    files = thread.workspace(root)
    taken = files.snapshot()
    assert taken.git == first
    saved = thread.save(thread.hydrate(), workspace=taken)
    assert saved.attributes == {"git-commit": main, "git-branch": "main"}
    git(root, "checkout", "-q", "-b", "other")
    (root / "a").write_text("changed")
    state = thread.hydrate()
    asked = thread.workspace(root, Rules(git="status")).snapshot()
    thread.save(state, workspace=asked, attributes={"git-branch": "mine", "n": 1})
    assert asked.git == GitHead(main, "other", dirty=True)
    newest = thread.hydrate().checkpoint
    assert newest.attributes == {"git-commit": main, "git-branch": "mine", "git-dirty": True, "n": 1}
    assert [each.version for each in thread.checkpoints.list(where={"git-branch": "main"})] == [1]
    plan = files.plan(1)
    assert (plan.git, plan.git_now) == (first, GitHead(main, "other"))
    assert str(plan.git_now) == f"branch other at {main[:12]}"
    assert files.plan().git == GitHead(main, "mine", dirty=True)
    many = {f"a{number}": number for number in range(63)}
    assert thread.save(thread.hydrate(), workspace=files.snapshot(), attributes=many).attributes == many
    large = {"a": "x" * ((16 << 10) - 1)}  # with it, the daemon takes no byte more
    assert thread.save(thread.hydrate(), workspace=files.snapshot(), attributes=large).attributes == large
    assert "git-commit" not in thread.save(thread.hydrate()).attributes


def test_what_is_dirty(thread: Thread, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that git knows count, and others do not. Without git nobody can say, and the snapshot is taken."""
    files = thread.workspace(root, Rules(git="status"))
    (root / "new").write_text("n")
    clean = files.snapshot().git
    assert clean is not None
    assert clean.dirty is False
    git(root, "add", "new")
    staged = files.snapshot().git
    assert staged is not None
    assert staged.dirty is True
    before = (root / ".git/index").read_bytes()
    os.utime(root / "a", ns=(1, 1))
    assert str(files.snapshot().git).endswith(", with changes")
    assert (root / ".git/index").read_bytes() == before
    monkeypatch.setenv("PATH", "/nowhere")
    unknown = files.snapshot().git
    assert unknown is not None
    assert unknown.dirty is None


def test_a_whole_repository_comes_back(thread: Thread, root: Path, tmp_path: Path) -> None:
    """With branches, a stash and the index, whatever their names; into an empty directory, and only if asked."""
    for name in ("target", "a.log", "id_rsa", "x.pem", "node_modules/__pycache__"):
        git(root, "branch", name)
    (root / ".gitignore").write_text("*.log\nlogs\nHEAD\nobjects\n")
    commit(root, "b", "two")
    (root / "a").write_text("stashed")
    git(root, "stash")
    (root / "a").write_text("staged")
    git(root, "add", "a")
    git(root, "gc", "-q")
    rules = Rules(git="whole", gitignore=True)
    saved = thread.save(thread.hydrate(), workspace=thread.workspace(root, rules).snapshot())
    thread.trees.fork_into(tmp_path / "copy", saved, git="whole")

    def told(place: Path) -> list[str]:
        words = "status --porcelain", "for-each-ref", "stash list", "log --all --oneline", "fsck", "diff --cached"
        return [git(place, *each.split()) for each in words]

    assert told(tmp_path / "copy") == told(root)
    thread.trees.fork_into(tmp_path / "files", saved)
    assert sorted(each.name for each in (tmp_path / "files").iterdir()) == [".gitignore", "a", "b"]
    before = facts(root / ".git", inodes=True)
    git(tmp_path / "copy", "checkout", "-q", "-f", "target")
    plan = thread.workspace(tmp_path / "copy", rules).plan(saved)
    assert plan.omitted == (b".git",)
    there = facts(tmp_path / "copy/.git", inodes=True)
    plan.apply()
    assert facts(tmp_path / "copy/.git", inodes=True) == there
    assert (tmp_path / "copy/a").read_text() == "staged"
    assert facts(root / ".git", inodes=True) == before
    with pytest.raises(ValueError, match="git is 'all'"):
        thread.trees.fork_into(tmp_path / "third", saved, git="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="git is 'all'"):
        Rules(git="all")  # type: ignore[arg-type]


def test_a_copy_of_a_repository_that_stopped_goes_on(
    thread: Thread, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = thread.save(thread.hydrate(), workspace=thread.workspace(root, WHOLE).snapshot())
    real, left = os.rename, 10

    def rename(*given: object, **options: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        real(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(RestoreUnfinished):
        thread.trees.fork_into(tmp_path / "copy", saved, git="whole")
    monkeypatch.undo()
    thread.workspace(tmp_path / "copy").resume()
    assert git(tmp_path / "copy", "log", "--oneline") == git(root, "log", "--oneline")
    assert git(tmp_path / "copy", "status", "--porcelain") == ""


def test_a_git_that_lies_elsewhere_is_not_kept(thread: Thread, root: Path, tmp_path: Path) -> None:
    """A worktree's `.git` would have a copy work on the branches of the original. That of a submodule leads inside."""
    git(root, "worktree", "add", "-q", "-b", "beside", str(tmp_path / "beside"))
    taken = thread.workspace(tmp_path / "beside", WHOLE).snapshot()
    assert (b".git", "it leads to a repository elsewhere") in [(each.path, each.reason) for each in taken.left_out]
    git(root, "submodule", "add", "-q", str(tmp_path / "beside"), "inner")
    git(root, "commit", "-q", "-m", "inner")
    (root / "linked").mkdir()
    (root / "linked/.git").symlink_to("../.git")
    taken = thread.workspace(root, WHOLE).snapshot()
    assert [each.path for each in taken.left_out] == [b"linked/.git"]
    saved = thread.save(thread.hydrate(), workspace=taken)
    thread.trees.fork_into(tmp_path / "copy", saved, git="whole")
    assert said(tmp_path / "copy/inner") == said(root / "inner")
    assert git(tmp_path / "copy", "status", "--porcelain") == ""


def test_programs_that_a_repository_names_do_not_run(thread: Thread, root: Path, tmp_path: Path) -> None:
    """Not in a snapshot by itself; those that watch files do not run for `status` either."""
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    program.chmod(0o755)
    git(root, "config", "core.fsmonitor", str(program))
    git(root, "config", "core.hooksPath", str(tmp_path))
    for rules in (Rules(), Rules(git="status"), WHOLE):
        thread.workspace(root, rules).snapshot()
    assert not (tmp_path / "ran").exists()
