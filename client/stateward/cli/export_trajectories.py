"""`stateward export --trajectories`: writes finished runs for training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stateward.cli.describe import plain
from stateward.cli.files import written
from stateward.cli.output import CommandError, counted, note, size
from stateward.cli.ticker import Ticker
from stateward.cli.trajectories import MetricRange, find_runs, read_trajectory
from stateward.errors import ThreadNotFound, VersionNotFound
from stateward.values import encode

if TYPE_CHECKING:
    from stateward import Client, ThreadInfo
    from stateward.models import ThreadFilters


def export_trajectories(
    client: Client,
    names: Sequence[str],
    filters: ThreadFilters,
    metrics: MetricRange,
    agent: str | None,
    outcome: str | None,
    output: Path | None,
) -> None:
    """Writes a line for each named thread, or for each run that fits."""
    lines = size_bytes = 0
    with written(output) as file, Ticker("exporting") as ticker:
        for info in _named(client, names) if names else find_runs(client, filters, metrics, agent):
            try:
                record = read_trajectory(client, info, plain, outcome)
                line = encode(record, "").data + b"\n"
            except ThreadNotFound:
                continue  # deleted meanwhile
            except VersionNotFound:
                note(f"thread {info.name!r} has no version on branch main yet, and is skipped")
                continue
            except (TypeError, ValueError) as error:
                raise CommandError(f"thread {info.name!r} cannot be written as JSON: {error}") from None
            file.write(line)
            lines, size_bytes = lines + 1, size_bytes + len(line)
            ticker.say(f"{lines:,} runs, {size(size_bytes)}; now {info.name}")
    if output is not None or not lines:
        where = f"{output} holds" if output is not None else "there are"
        note(f"{where} {counted(lines, 'run')}, {size(size_bytes)} before packing")


def _named(client: Client, names: Sequence[str]) -> Iterator[ThreadInfo]:
    for name in dict.fromkeys(names):
        yield client.thread(name).info()


def read_metrics(given: Sequence[str], option: str) -> dict[str, float]:
    """Parses limits of the form NAME=NUMBER. Raises typer.BadParameter if one is not."""
    found = {}
    for each in given:
        name, _, number = each.partition("=")
        try:
            found[name] = float(number)
        except ValueError:
            name = ""
        if not name:
            raise typer.BadParameter(f"{each!r} is not NAME=NUMBER", param_hint=option)
    return found
