"""Values that are typed as JSON."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from stateward.cli.output import CommandError


def read_json(text: str, option: str) -> Any:
    """The value. ValueError for what is no JSON, and CommandError, naming the option, for what looks so and cannot be
    kept: Python reads NaN and Infinity too, and makes infinity of a number that is too large."""

    def refuse(word: str) -> NoReturn:
        raise CommandError(f"{option}: {word} is no number in JSON; write '\"{word}\"' for the word")

    from stateward import values  # noqa: PLC0415  costs most of a start

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
