"""Measures Stateward beside a bare gRPC echo, SQLite, PostgreSQL, Redis, etcd and LangGraph's savers, in one run.

    python -m tests.bench [--section NAME …] [--rounds N] [--quick | --long] [--no-peers] [--json FILE] [--svg FILE]

Every round makes one call of each contender in turn, so that a noisy machine hits all; ratios travel, times do not.
Everybody syncs to the disk before the answer. What is not installed is named and left out,
also the section `load` without Go.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import aims, picture
from tests.bench.field import Field, open_field
from tests.bench.payload import Payload, load_payload
from tests.bench.report import Report, Section, machine_facts, print_aims, print_section
from tests.bench.sections import (
    Effort,
    access,
    archive,
    disk,
    flight,
    graph,
    hydrate,
    lists,
    load,
    logs,
    memory,
    neighbour,
    opening,
    save,
    saver,
    start,
    steps,
    storage,
    tls,
    watched,
    wire,
    workspace,
    writer,
)

Measure = Callable[[Field, Payload, Effort], Iterator[Section]]
SECTIONS: dict[str, Measure] = {
    "save": save.measure,
    "flight": flight.measure,
    "hydrate": hydrate.measure,
    "steps": steps.measure,
    "bytes": storage.measure,
    "disk": disk.measure,
    "start": start.measure,
    "open": opening.measure,
    "list": lists.measure,
    "memory": memory.measure,
    "archive": archive.measure,
    "writer": writer.measure,
    "load": load.measure,
    "logs": logs.measure,
    "watched": watched.measure,
    "wire": wire.measure,
    "access": access.measure,
    "tls": tls.measure,
    "neighbour": neighbour.measure,
    "saver": saver.measure,
    "graph": graph.measure,
    "workspace": workspace.measure,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the chosen sections and prints their tables. Returns the exit code: 1 if a section failed."""
    options = read_arguments(arguments)
    # Else each start of a daemon compiles both packages anew, which is not what its users wait for.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    began, payload = time.monotonic(), load_payload()
    with open_field(with_peers=not options.no_peers) as field:
        report = Report(machine_facts(field.work, field.versions()), payload.source, options.rounds, options.quick)
        print_heading(report)
        for name, measure in SECTIONS.items():
            if name in (options.section or SECTIONS):
                try:
                    for section in measure(field, payload, Effort(options.rounds, options.quick, options.long)):
                        report.sections.append(section)
                        print_section(section)
                except Exception as error:  # noqa: BLE001  the other sections can still be measured
                    report.failed[name] = f"{type(error).__name__}: {error}"
                    traceback.print_exc()
        report.skipped = field.skipped
    report.aims = aims.judge(report)
    print_aims(report.aims)
    if report.quick:
        print("  (--quick: a shortened run, whose aims say little)")
    for name, reason in report.skipped.items():
        print(f"left out: {name} ({reason})")
    for name, reason in report.failed.items():
        print(f"FAILED: section {name} ({reason})")
    print(f"took {time.monotonic() - began:.0f} s")
    write(options.json, json.dumps(report.as_json(), indent=1, ensure_ascii=False) + "\n")
    write(options.svg, picture.draw(report))
    return 1 if report.failed else 0


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--section", action="append", choices=SECTIONS, metavar="NAME", help=f"only this one: {', '.join(SECTIONS)}")
    add("--rounds", type=int, metavar="N", help="calls of each kind, a third at 1 MB (default: 400; with --quick 20)")
    add("--quick", action="store_true", help="few rounds, short runs: for trying out; aims then say little")
    add("--long", action="store_true", help="also what takes many minutes: a directory of 100,000 files, 200 versions")
    add("--no-peers", action="store_true", help="only the echo and Stateward")
    add("--json", type=Path, metavar="FILE", help="write everything there as JSON")
    add("--svg", type=Path, metavar="FILE", help="write the picture there")
    options = parser.parse_args(arguments)
    if options.quick and options.long:
        parser.error("--quick and --long exclude each other")
    if options.rounds is None:
        options.rounds = 20 if options.quick else 400
    if options.rounds < 2:
        parser.error("--rounds must be at least 2")
    return options


def print_heading(report: Report) -> None:
    """What the figures depend on."""
    facts = report.machine
    print(f"{facts['cpus']} CPUs ({facts['processor']}), {facts['system']}, all data on {facts['file_system']}")
    print(f"Python {facts['python']}, " + ", ".join(f"{name} {each}" for name, each in facts["versions"].items()))
    print(f"messages: {report.payload}; {report.rounds} rounds; synced to the disk before every answer, by everybody")
    if facts["load_before"] > (facts["cpus"] or 1) / 2:
        print(f"busy: the load before this run is {facts['load_before']}; neighbours who sync spoil even the ratios")
    sys.stdout.flush()


def write(file: Path | None, text: str) -> None:
    """Writes a result where one was asked for."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(f"wrote {file}")


if __name__ == "__main__":
    # What ends the bench ends its servers too: a SystemExit passes through every `finally`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
