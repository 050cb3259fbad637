"""The danger: a page that leads a newcomer to a file which is gone, or knows nothing of one that is new."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

FOLDERS = ("service", "store", "archive", "storage", "codec", "bucket", "metrics", "doctor", "tracing")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_has_its_place(repository: Path, folder: str) -> None:
    """Each module of a folder of the daemon stands once in the part of the page that is about the folder."""
    page = (repository / "docs/rooms.md").read_text()
    sections = re.findall(rf"^### `{folder}/`.*?(?=^###)|^\| `{folder}/` .*?$", page, re.DOTALL | re.MULTILINE)
    assert len(sections) == 1
    named = Counter(re.findall(r"`([a-z]+)`", sections[0]))
    files = {path.stem for path in (repository / "sidecar/stateward_sidecar" / folder).glob("*.py")} - {"__init__"}
    assert files - named.keys() == set()
    assert set(named) - files == set()
    assert [name for name, count in named.items() if count > 1] == []
