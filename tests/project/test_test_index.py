"""The danger: a test that nobody finds, because its name says nothing, and no page names it."""

from collections import Counter
from pathlib import Path

from tests import make_index

# A name that begins with such a word says the danger, and not what is in danger.
ADJECTIVES = """
    altered applied bad bare broken busy cancelled changed cleaned cleared cloned cold collected copied damaged deep
    deleted destroyed doubled drained dropped dry eager emptied endless every expired exposed failed fast forgotten
    forked found full given gone greedy grown half hanging hidden homeless hostile hot hung idle ill impatient
    inexact interrupted joined kept killed known large late left lone long lost made many misjudged misread missed
    missing mixed moved new newer old other paid planned poisoned pruned racing random read refused released
    replaced restored retried reused revived rolling shared short silent single sleeping slow spoilt stale stalled
    streamed stuck swollen taken talkative told torn trickling trimmed two unarchived unbounded uncounted undecoded
    unexpected unfinished unheard uninvited unknown unnamed unproven unread unreadable unseen unsynced untold untrue
    unusable used vanished vanishing whole woken worst wrong
"""


def test_the_index_is_current() -> None:
    """`make generate` would write the page that is there."""
    assert make_index.PAGE.read_text() == make_index.page(), "run: make generate"


def test_every_file_names_its_danger() -> None:
    """The docstring of each test file begins with the words by which people search."""
    told = {path: make_index.first_paragraph(path) for path in make_index.test_files()}
    others = [path for path, words in told.items() if not words.startswith("The danger: ")]
    assert others == [], "a test file begins with 'The danger: ' and what would hurt a user without it"


def test_a_name_is_one_file() -> None:
    """A name that a report or a patch mentions leads to one file."""
    assert [name for name, count in Counter(path.name for path in make_index.test_files()).items() if count > 1] == []


def test_a_name_begins_with_its_subject() -> None:
    """Who looks for the tests of leases finds them under their name: `test_leases_unexpected`."""
    firsts = {path.name: path.stem.removeprefix("test_").partition("_")[0] for path in make_index.test_files()}
    assert [name for name, first in firsts.items() if first in ADJECTIVES.split()] == []


def test_a_patch_leads_to_the_file_it_breaks(repository: Path) -> None:
    """A file is found under its own path, and nothing is made of a path that leads nowhere."""
    own = "sidecar/stateward_sidecar/settings.py"
    assert (repository / own).exists()
    assert make_index.present(own) == own
    assert make_index.present("sidecar/stateward_sidecar/no_such_file.py") is None
