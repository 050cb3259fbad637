"""The names of a disk: a tree of directories that knows which changes of names were synced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from tests.soak.recording import Kind, Operation

# The names in each directory, and the numbers of what they lead to.
Tree = dict[int, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Change:
    """What happens at once: (directory, name, what it leads to from then on; None = nothing). The sync of one directory
    makes it durable."""

    decided_by: int
    steps: tuple[tuple[int, str, int | None], ...]

    def apply(self, tree: Tree) -> None:
        for directory, name, number in self.steps:
            names = tree.setdefault(directory, {})
            if number is None:
                names.pop(name, None)
            else:
                names[name] = number


class Names:
    """The names below a root that is itself durable. Numbers are never used twice."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._now: Tree = {}
        self._durable: Tree = {}
        self._pending: list[Change] = []
        self.directories = {root}

    def change(self, operation: Operation, number: int) -> None:
        """One more change, as processes see it; ``number`` is what is made."""
        directory, name = self._find_parent(operation.path)
        match operation.kind:
            case Kind.CREATE | Kind.LINK:
                change = Change(directory, ((directory, name, number),))
            case Kind.MKDIR:
                self.directories.add(number)
                change = Change(directory, ((directory, name, number),))
            case Kind.UNLINK | Kind.RMDIR:
                change = Change(directory, ((directory, name, None),))
            case Kind.RENAME:
                target, new_name = self._find_parent(operation.other)
                moved = self._now.get(directory, {})[name]
                change = Change(target, ((directory, name, None), (target, new_name, moved)))
            case _:
                raise AssertionError(operation.kind)
        change.apply(self._now)
        self._pending.append(change)

    def _find_parent(self, path: str) -> tuple[int, str]:
        *folders, name = PurePosixPath(path).parts
        directory = self._root
        for folder in folders:
            directory = self._now[directory][folder]
        return directory, name

    def sync(self, directory: int) -> None:
        """The names in a directory are durable now."""
        for change in self._pending:
            if change.decided_by == directory:
                change.apply(self._durable)
        self._pending = [change for change in self._pending if change.decided_by != directory]

    def unsynced(self) -> int:
        """How many changes could be lost now."""
        return len(self._pending)

    def paths(self) -> dict[str, int]:
        """All paths as processes see them; a directory comes before what is in it."""
        return dict(_walk(self._now, self._root, ""))

    def paths_after_loss(self, keeps: Callable[[], bool]) -> dict[str, int]:
        """All paths that may be found; ``keeps`` throws the dice for each change that was not synced."""
        tree = {directory: dict(names) for directory, names in self._durable.items()}
        for change in self._pending:
            if keeps():
                change.apply(tree)
        return dict(_walk(tree, self._root, ""))


def _walk(tree: Tree, directory: int, above: str) -> Iterator[tuple[str, int]]:
    for name, number in sorted(tree.get(directory, {}).items()):
        yield above + name, number
        yield from _walk(tree, number, f"{above}{name}/")
