"""Reading the newest state back, hot, at three sizes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.field import Field
from tests.bench.payload import SIZES, Payload
from tests.bench.report import Section
from tests.bench.rounds import take_turns
from tests.bench.sections import Effort
from tests.bench.sections.save import add_rows


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Everybody in turn. Stores of bytes give bytes; clients and savers give Python values."""
    section = Section("hydrate", "hydrate: the newest state, hot")
    with field.contenders("hydrate", read=True) as contenders:
        for case, size in SIZES.items():
            for contender in contenders:
                contender.fill(f"hydrate-{contender.name}-{case}", payload.state(size))
            prepare = {
                each.name: lambda each=each, case=case: each.read(f"hydrate-{each.name}-{case}") for each in contenders
            }
            add_rows(section, case, take_turns(prepare, effort.at_size(size)))
    section.notes += [
        "echo: a small request, and an answer as large as Stateward's; both ways: the request is as large as well",
        "the Python client (with the extra fast) and LangGraph's savers decode every message, all others give bytes",
    ]
    yield section
