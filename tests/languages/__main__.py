"""Builds the agents of `examples/`, and runs each of them against one daemon, which is killed many times.

Each then proves itself against the scripted daemon of `stateward conformance`.

    python -m tests.languages [LANGUAGE ...]

Exits 0 if no agent fails. A language is skipped, with the reason, if its tools are missing.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.crash.faulty_daemon import FaultyDaemon
from tests.languages import building, script


def main() -> int:
    """Runs the command. Returns its exit code."""
    known = building.list_languages()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help="default: all of " + ", ".join(known))
    chosen = parser.parse_args().languages or known
    if unknown := set(chosen) - set(known):
        parser.error(f"no agent in {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    with script.run_daemon() as daemon:
        results = [show(language, daemon) for language in chosen]
    print(f"{results.count('passed')} passed, {results.count('failed')} failed, {results.count('skipped')} skipped")
    return int("failed" in results)


def show(language: str, daemon: FaultyDaemon) -> str:
    """Builds and runs one agent, and prints how it went. Returns "passed", "failed" or "skipped"."""
    print(f"examples/{language}: building …", flush=True)
    start = time.monotonic()
    try:
        program = building.build(language)
        agent = script.ForeignAgent(program, f"example-{language}", daemon)
        built_s = time.monotonic() - start
        script.play(agent)
        script.count(agent)
        script.pay_slowly(script.ForeignAgent(program, f"slow-{language}", daemon))
        passed = script.conform(program)
    except building.ToolMissing as reason:
        print(f"examples/{language}: skipped: {reason}")
        return "skipped"
    except (building.BuildFailed, AssertionError) as fault:
        print(f"examples/{language}: FAILED: {fault or traceback.format_exc()}")
        return "failed"
    ran_s = time.monotonic() - start - built_s
    times = f"built in {built_s:.0f} s, ran in {ran_s:.0f} s"
    print(f"examples/{language}: passed, with {passed} scenarios of stateward conformance; {times}", flush=True)
    return "passed"


if __name__ == "__main__":
    sys.exit(main())
