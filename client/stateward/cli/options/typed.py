"""Reads JSON values from command-line options."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from stateward.cli.show.output import CommandError


def read_json(text: str, option: str) -> Any:
    """Returns the value. Raises JSONDecodeError if the text is not JSON.

    Raises CommandError, which names the option, if the value cannot be stored: Python's parser also accepts NaN and
    Infinity, and turns a number that is too large into infinity. Raises it for an object with the same key twice, too,
    of which the parser would drop the first value.
    """

    def refuse(word: str) -> NoReturn:
        raise CommandError(f"{option}: {word} is not a number in JSON; write '\"{word}\"' for the word")

    def unite(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
            raise CommandError(f"{option}: the key {twice!r} is in an object twice; one of its values would be lost")
        return found

    from stateward import values  # noqa: PLC0415  slow to import

    try:
        value = json.loads(text, parse_constant=refuse, object_pairs_hook=unite)
        values.encode(value, "the value")
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise CommandError(f"{option}: the value is nested too deeply") from None
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from None
    return value
