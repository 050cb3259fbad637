"""Names and labels in PromQL, as far as the alerts and the dashboard use it."""

from __future__ import annotations

import re

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^}]*)\}")
_RANGE = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"\b[a-zA-Z_:][a-zA-Z0-9_:]*\b(?!\s*\()")
_WORDS = {"and", "or", "unless", "by", "on", "without", "ignoring", "bool", "inf", "nan"}


def names_in(expression: str) -> set[str]:
    """The names of the metrics."""
    bare = _GROUPING.sub(" ", _RANGE.sub(" ", re.sub(r"\{[^}]*\}", " ", _TEXT.sub('""', expression))))
    return {name for name in _NAME.findall(bare) if name.lower() not in _WORDS}


def labels_in(expression: str) -> dict[str, set[str]]:
    """The labels by which each metric is selected; and under the empty name, those by which results are grouped."""
    found: dict[str, set[str]] = {}
    bare = _TEXT.sub('""', expression)
    for name, selector in _SELECTOR.findall(bare):
        found.setdefault(name, set()).update(re.findall(r"([a-zA-Z_][a-zA-Z0-9_]*)\s*[=!]", selector))
    for grouping in _GROUPING.findall(bare):
        found.setdefault("", set()).update(each.strip() for each in grouping.split(",") if each.strip())
    return found
