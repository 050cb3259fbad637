"""The danger: a drawing that is cut off, cannot be read on a dark page, loads something, or is not what draws it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

SVG = "{http://www.w3.org/2000/svg}"
NARROW = 520
"""Pixels: on a telephone of 400 the letters are then still nine pixels high."""
LETTER = 0.535
"""Width of a letter by size, on average, in a wide font."""


def pictures(repository: Path) -> list[Path]:
    return [*sorted((repository / "docs/pictures").glob("*.svg")), repository / "tests/bench/bench.svg"]


def test_they_are_what_draws_them(repository: Path) -> None:
    """`make generate` makes the same files, and no file is left of a drawing that is gone."""
    command = [sys.executable, "docs/pictures/draw.py", "--check"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_can_be_read(repository: Path) -> None:
    """Each is narrow, says in words what it shows, has colours for dark pages, and loads nothing."""
    for path in pictures(repository):
        text, picture = path.read_text(), ET.parse(path).getroot()
        assert float(picture.get("width") or 0) <= NARROW, path
        assert len(picture.get("aria-label") or "") > 20, path
        assert "prefers-color-scheme:dark" in text, path
        assert not re.search(r"href|url\((?!#)|@import|src=", text), path
        for words in picture.iter(f"{SVG}text"):
            assert words.get("class"), f"{path}: {words.text} has one colour for both schemes"
            wide = len(words.text or "") * float(words.get("font-size") or 0) * LETTER
            left = float(words.get("x") or 0) - {"middle": wide / 2}.get(words.get("text-anchor") or "", 0)
            assert 0 < left < left + wide < float(picture.get("width") or 0), f"{path}: {words.text} is cut off"


def test_words_leave_no_picture(repository: Path) -> None:
    """A text that would be cut off is refused when it is drawn."""
    code = "import sys; sys.path.insert(0, 'docs/pictures'); import canvas; picture = canvas.Picture('a', 50)\n{}"
    calls = ("picture.text(300, 20, 'a line that goes on behind the edge')", "picture.box(0, 0, 40, 20, 'too much')")
    for call in calls:
        done = subprocess.run(
            [sys.executable, "-c", code.format(call)], cwd=repository, capture_output=True, text=True, check=False
        )
        assert re.search(r"ValueError: '.*' leaves (the picture|its box)", done.stderr)


IDEAS = ["Thread", "Version", "Branch", "Diff", "Digest", "Durability levels", "Effect", "Question", "Lease",
         "Archive and takeover"]  # fmt: skip


def test_ten_ideas_have_a_picture_each(repository: Path) -> None:
    """The page explains ten ideas, each with its own picture, and ends with a glossary in order."""
    page = (repository / "docs/concepts.md").read_text()
    head, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    assert [section.partition("\n")[0] for section in sections] == [*IDEAS, "Glossary"]
    shown = [re.findall(r"\]\((pictures/\w+\.svg)\)", section) for section in sections[:-1]]
    assert all(len(each) == 1 for each in shown)
    assert len({each[0] for each in shown}) == len(IDEAS)
    assert "pictures/architecture.svg" in head
    words = re.findall(r"^\| ([\w ,]+) \|", sections[-1], re.MULTILINE)[1:]
    assert words == sorted(words, key=str.lower)


@pytest.mark.parametrize(("page", "numbers"), [("docs/guide.md", range(1, 12)), ("docs/frameworks.md", range(12, 17))])
def test_each_example_is_linked_from_its_section(repository: Path, page: str, numbers: range) -> None:
    """Whoever reads a section finds the program that shows it."""
    text = (repository / page).read_text()
    for number in numbers:
        (example,) = (repository / "examples").glob(f"{number:02}_*.py")
        assert f"(../examples/{example.name})" in text, example.name


def test_drawings_are_pictures(repository: Path) -> None:
    """README has no drawing of letters, which a narrow page cuts off."""
    assert not re.search(r"[─│└▶◀]", (repository / "README.md").read_text())
