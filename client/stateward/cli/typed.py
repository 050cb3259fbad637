"""Reads JSON values from command-line options."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from stateward.cli.output import CommandError


def read_json(text: str, option: str) -> Any:
    """Returns the value. Raises JSONDecodeError if the text is not JSON.

    Raises CommandError, which names the option, if the value cannot be stored: Python's parser also accepts NaN and
    Infinity, and turns a number that is too large into infinity.
    """

    def refuse(word: str) -> NoReturn:
        raise CommandError(f"{option}: {word} is not a number in JSON; write '\"{word}\"' for the word")

    from stateward import values  # noqa: PLC0415  slow to import

    try:
        value = json.loads(text, parse_constant=refuse)
        values.encode(value, "the value")
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise CommandError(f"{option}: the value is nested too deeply") from None
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from None
    return value
