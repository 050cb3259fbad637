"""The danger: a ninth way to open a daemon in a test, or one name for two kinds of machines, so that nobody knows what
a test runs on.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests import daemon

HARNESS = Path(daemon.__file__).parent
TESTS = HARNESS.parent
# What puts a daemon, or a part of one, together.
OPENS = re.compile(r"\b(StoreOptions|_make_parts|Archive)\(")
BELOW = re.compile(r"tests\.(daemon\.\w+|bucket\.weed|messages|warm)")


def test_daemons_are_put_together_in_one_place() -> None:
    """Stores, archives and whole daemons in a test's process are opened by `tests/daemon`."""
    found = {str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py") if OPENS.search(path.read_text())}
    assert "daemon/store.py" in found
    assert {name for name in found if not name.startswith("daemon/")} == set()


def test_a_name_of_the_harness_is_no_other_class() -> None:
    """Who reads `Town`, `Driven` or `Pair` in a test knows what it is."""
    classes: dict[str, list[str]] = defaultdict(list)
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(str(path.relative_to(TESTS)))
    ours = {name: places for name, places in classes.items() if any(place.startswith("daemon/") for place in places)}
    assert "Town" in ours
    assert {name: places for name, places in ours.items() if len(places) > 1} == {}


def test_the_harness_stands_on_its_own() -> None:
    """It imports nothing of the folders that stand on it."""
    text = "\n".join(each.read_text() for each in HARNESS.glob("*.py"))
    found = re.findall(r"^from (tests\S*) import", text, re.MULTILINE)
    assert found
    assert [name for name in found if not BELOW.fullmatch(name) and name != "tests.daemon"] == []


def test_the_page_names_every_file() -> None:
    """The docstring of `tests/daemon` says what each of its files is for."""
    told = set(re.findall(r"`([a-z]+)`", daemon.__doc__ or ""))
    assert {path.stem for path in HARNESS.glob("*.py")} - {"__init__"} <= told
