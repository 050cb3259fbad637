"""`stateward export --trajectories`: writes finished runs for training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stateward.cli.files.files import written
from stateward.cli.files.trajectories import MetricRange, find_runs, read_trajectory
from stateward.cli.show.describe import plain
from stateward.cli.show.one_by_one import Failures, read_again
from stateward.cli.show.output import CommandError, counted, note, size
from stateward.cli.show.ticker import Ticker
from stateward.errors import ThreadNotFound, UidMismatch, VersionNotFound
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
    failures = Failures()
    lines = size_bytes = 0
    with written(output) as file, Ticker("exporting") as ticker:
        runs = find_runs(client, filters, metrics, agent)
        for name, info in _named(names) if names else _found(failures.listed(runs)):
            with nullcontext() if len(names) == 1 else failures.beside(name):
                line = read_again(client, name, partial(_line, client, name, info, outcome))
                if line:
                    file.write(line)
                    lines, size_bytes = lines + 1, size_bytes + len(line)
                ticker.say(f"{lines:,} runs, {size(size_bytes)}; now {name}")
        if failures and not lines:
            failures.end("nothing is exported; the export would lack")
    if output is not None or not lines:
        where = f"{output} holds" if output is not None else "there are"
        note(f"{where} {counted(lines, 'run')}, {size(size_bytes)} before packing")
    failures.end("the export lacks")


def _named(names: Sequence[str]) -> Iterator[tuple[str, None]]:
    return ((name, None) for name in dict.fromkeys(names))


def _found(infos: Iterator[ThreadInfo]) -> Iterator[tuple[str, ThreadInfo]]:
    return ((info.name, info) for info in infos)


def _line(client: Client, name: str, info: ThreadInfo | None, outcome: str | None) -> bytes:
    """Returns the line of a run; empty if there is none."""
    try:
        record = read_trajectory(client, info or client.thread(name).info(), plain, outcome)
        return encode(record, "").data + b"\n"
    except (ThreadNotFound, UidMismatch):
        if info is None:
            raise
        note(f"thread {name!r} was removed meanwhile, and is skipped")
    except VersionNotFound:
        note(f"thread {name!r} has no version on branch main yet, and is skipped")
    except (TypeError, ValueError) as error:
        raise CommandError(f"thread {name!r} cannot be written as JSON: {error}") from None
    return b""


def read_metrics(given: Sequence[str], option: str) -> dict[str, float]:
    """Parses limits of the form NAME=NUMBER. Raises typer.BadParameter if one is not."""
    found = dict[str, float]()
    for each in given:
        name, _, number = each.partition("=")
        if name in found:
            raise typer.BadParameter(f"metric {name!r} is given twice", param_hint=option)
        try:
            found[name] = float(number)
        except ValueError:
            name = ""
        if not name or math.isnan(found[name]):
            raise typer.BadParameter(f"{each!r} is not NAME=NUMBER", param_hint=option)
    return found
