"""`stateward conformance`: plays a scripted daemon, against which a client of any language proves itself."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from stateward.cli.show.output import CommandError, counted, is_terminal, print_json, print_table, say
from stateward.conformance.play import Play
from stateward.conformance.running import FAILED, LEFT_OUT, PASSED, Result, find_program, judge, run_each, run_together
from stateward.conformance.scenarios import load, names, source
from stateward.conformance.server import ScriptedDaemon

POLL_S = 0.1
STYLES = {PASSED: "green", FAILED: "red", LEFT_OUT: "dim"}


def conformance(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND …]", help="Starts your client; the scenario's name is added at the end."),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="Where clients reach it: host:port or unix:///path.")
    ] = "127.0.0.1:0",
    scenario: Annotated[
        list[str] | None,
        typer.Option("--scenario", "-s", metavar="NAME", help="Only this scenario, or a pattern such as 'advance/*'."),
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="Start the command once, with the names of all scenarios.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long one scenario may take.")
    ] = 30.0,
    list_: Annotated[bool, typer.Option("--list", help="Print the scenarios and what each one proves.")] = False,
    show: Annotated[str, typer.Option("--show", metavar="NAME", help="Print the golden file of a scenario.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Test a client of any language against a scripted daemon.

    The scripted daemon plays golden exchanges: pages to be joined, lost answers, conflicts, unknown reasons, broken
    streams and connections, leases, effects, questions, records. Each scenario has a thread, conformance/NAME. The part
    of NAME before the slash says what the client does there; docs/protocol.md describes it. The command starts your
    client once for each scenario, with STATEWARD_TARGET set. A client that does not have a procedure exits with 77.
    Without a COMMAND, the scripted daemon waits for clients that you start yourself, and ends when every scenario is
    over or on Ctrl-C.

    Exits with 0 if no scenario failed, else with 1.

    \b
    Examples:
      stateward conformance -- ./my-client
      stateward conformance -s 'advance/*' -- node dist/conformance.js
      stateward conformance --listen unix:///tmp/scripted.sock
      stateward conformance --show advance/conflict
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    chosen = _choose(scenario or [])
    if show:
        print(source(_choose([show])[0]), end="")
        return
    if list_:
        _print_list(chosen, as_json=as_json)
        return
    if command and (problem := find_program(command)):
        raise CommandError(problem)
    try:
        daemon = ScriptedDaemon(listen, chosen)
    except OSError as error:
        raise CommandError(f"--listen {error}") from None
    with daemon:
        if command:
            results = list((run_together if together else run_each)(daemon, command, timeout_s))
        else:
            say(f"listening at {daemon.target}")
            results = list(_wait(daemon.plays.values()))
    _print_results(results, as_json=as_json)
    if any(result.outcome == FAILED for result in results):
        raise typer.Exit(1)


def _choose(patterns: list[str]) -> list[str]:
    """Returns the scenarios that the patterns name; all if there are none."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names()):
            raise CommandError(f"there is no scenario {pattern!r}; `stateward conformance --list` lists them")
    return [name for name in names() if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]


def _print_list(chosen: list[str], *, as_json: bool) -> None:
    rows = [(name, load(name).proves) for name in chosen]
    if as_json:
        print_json([{"scenario": name, "proves": proves} for name, proves in rows])
    else:
        print_table(("SCENARIO", "PROVES"), rows)


def _wait(plays: Iterable[Play]) -> Iterator[Result]:
    """Waits until every scenario is over, or until Ctrl-C. A scenario that no client began is left out."""
    left = list(plays)
    try:
        while left:
            time.sleep(POLL_S)
            over = [play for play in left if play.is_touched and (play.is_done or play.failure)]
            left = [play for play in left if play not in over]
            yield from (judge(play, 0) for play in over)
    except KeyboardInterrupt:
        yield from (judge(play, 0 if play.is_touched else 77) for play in left)


def _print_results(results: list[Result], *, as_json: bool) -> None:
    counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in (PASSED, FAILED, LEFT_OUT)}
    if as_json:
        shown = [{"scenario": each.name, "outcome": each.outcome, "problem": each.problem} for each in results]
        print_json({"scenarios": shown, **{outcome.replace(" ", "_"): count for outcome, count in counts.items()}})
        return
    rows = [(each.name, each.outcome, each.problem) for each in results]
    print_table(("SCENARIO", "RESULT", "PROBLEM"), rows, below=("PROBLEM",))
    for each in results:
        if each.output:
            say(f"\n{each.name} printed:")
            say(each.output, style="dim" if is_terminal() else "")
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count or outcome == PASSED)
    say(f"\n{counted(len(results), 'scenario')}: {said}", style=STYLES[FAILED if counts[FAILED] else PASSED])
