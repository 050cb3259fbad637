"""The danger: two texts of a framework share a thread, or a text is refused because a name may not be like it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateward._naming import HASHED, NAME_BYTES_MAX, escape, name_for, text_of, unescape

ODD = [
    "",
    "-",
    "~%",
    "~#",
    "~%a",
    "~%25",
    "%",
    "100%",
    "a\nb",
    "\x00",
    "\x7f",
    "\x9f",
    "\ud800",
    "é" * 513,
    "\x00" * 500,
]
ODD += ["a@@1", "@@1", "a@1", "a@@1.2", "a@@x", "~", "a~%", "x" * 1024, "x" * 1025, "\U0001f600" * 257, " ", "/", ".."]
TEXTS = st.text(st.characters(), max_size=40) | st.sampled_from(ODD) | st.text("~%#@-0a\x00\ud800", max_size=6)


def is_name(name: str) -> bool:
    """Whether the daemon takes a name for a new thread."""
    return 1 <= len(name.encode()) <= NAME_BYTES_MAX and name != "-" and not re.search("[\x00-\x1f\x7f-\x9f]", name)


@given(TEXTS)
def test_a_name_leads_back_to_its_text(text: str) -> None:
    """Unless it is too long; a text that is a name stays as it is."""
    name = name_for(text)
    assert is_name(name)
    assert not re.search(r"@@[0-9.]+\Z", name)
    assert text_of(name) == (None if name.startswith(HASHED) else text)
    assert name.startswith(HASHED) <= (len(escape(text, "@").encode(errors="surrogatepass")) > NAME_BYTES_MAX - 2)
    assert unescape(escape(text, "/")) == text


@given(st.lists(TEXTS, unique=True), st.sampled_from([512, 700, NAME_BYTES_MAX]))
def test_different_texts_have_different_names(texts: list[str], bytes_max: int) -> None:
    """Whatever the limit is; also the names of other texts."""
    texts = list(dict.fromkeys([*texts, *(name_for(text) for text in texts)]))
    names = [name_for(text, bytes_max) for text in texts]
    assert len(set(names)) == len(texts)
    assert max([len(name.encode()) for name in names], default=0) <= bytes_max


@pytest.mark.parametrize("text", ["a", "ä/b.c", "100%", "team@1", "~", "a b", "x" * 1024])
def test_a_text_that_is_a_name_stays(text: str) -> None:
    """Nothing that worked before has another name now."""
    assert name_for(text) == text
