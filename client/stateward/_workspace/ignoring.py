"""Decides which files the rules leave out."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Any

from stateward._version import install_command
from stateward.errors import WorkspaceRefused
from stateward.workspaces import Rules

FILE_BYTES_MAX, LINES_MAX, STARS_MAX = 1 << 20, 10_000, 5
RESERVED = b".stateward-restore"
"""Names of files that a restore makes for itself begin with it."""
STATEWARD, GIT = b".statewardignore", b".gitignore"


class Names:
    """The names and patterns of the rules."""

    def __init__(self, rules: Rules) -> None:
        self.files = (STATEWARD, GIT) if rules.gitignore else (STATEWARD,)
        """The files with rules of which a directory may have some. The first one counts most."""
        self._left_out, self._secrets = _pattern(rules.left_out), _pattern(rules.secrets)
        self._rules = rules
        self._has_git = rules.git == "whole"

    def is_whole(self, name: str) -> bool:
        """Returns whether something with this name is kept, with all below it, whatever the rules say."""
        return self._has_git and name == ".git"

    def reason(self, name: str) -> str:
        """Returns why a name is left out; "" = it is not."""
        if self._left_out is not None and self._left_out.match(name):
            return f"rule {_which(self._rules.left_out, name)}"
        if self._secrets is not None and self._secrets.match(name):
            return f"it may hold secrets: {_which(self._rules.secrets, name)}"
        return ""


class Ignored:
    """The rules of files such as `.gitignore` that count in a directory: its own, and those of its parents."""

    def __init__(self, path: bytes, spec: Any, called: str, parent: Ignored | None) -> None:
        self._depth, self._spec, self._called, self._parent = len(path) + 1 if path else 0, spec, called, parent

    def reason(self, path: bytes) -> str:
        """Returns why a path from the root, which ends in "/" for a directory, is left out; "" = it is not. The nearest
        rule counts."""
        each: Ignored | None = self
        while each is not None:
            found = each._spec.check_file(path[each._depth :].decode(errors="surrogateescape")).include
            if found is not None:
                return f"rule of {each._called}" if found else ""
            each = each._parent
        return ""


def read_rules(path: bytes, name: bytes, data: bytes, parent: Ignored | None) -> Ignored:
    """Reads a file with rules. Raises WorkspaceRefused for one that has too many, and ImportError."""
    called = b"/".join([path, name] if path else [name])
    shown = called.decode(errors="backslashreplace")
    lines = data.decode(errors="surrogateescape").splitlines()
    if len(data) > FILE_BYTES_MAX or len(lines) > LINES_MAX:
        raise _refused(shown, f"has more than {LINES_MAX:,} lines or {FILE_BYTES_MAX:,} bytes", "rules")
    for line in lines:
        if len(re.findall(r"\*+", line)) > STARS_MAX:
            raise _refused(shown, f"has a rule with more than {STARS_MAX} stars, which may take for ever", "stars")
    try:
        from pathspec import GitIgnoreSpec  # noqa: PLC0415  an extra
    except ImportError:
        raise ImportError(f"{shown} needs more packages: {install_command('workspace')}") from None
    try:
        spec = GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise _refused(shown, f"has a rule that is wrong: {error}", "rules") from None
    return Ignored(path, spec, shown, parent)


def _refused(path: str, what: str, limit: str) -> WorkspaceRefused:
    return WorkspaceRefused(f"{path} {what}", metadata={"path": path, "limit": limit})


def _pattern(patterns: Iterable[str]) -> re.Pattern[str] | None:
    """Returns one expression for all patterns of names; None = there are none."""
    found = "|".join(map(fnmatch.translate, patterns))
    return re.compile(found) if found else None


def _which(patterns: Iterable[str], name: str) -> str:
    return next(each for each in patterns if fnmatch.fnmatchcase(name, each))
