"""`stateward demo`: a working agent is killed with its daemon, then loses its machine, and continues each time.

The demo checks everything that it prints; a failed check makes the exit code 1.
"""

from __future__ import annotations

import random
import time
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.demo.review import Measured, content, fence, review_fork, review_history, review_result
from stateward.cli.demo.stage import THREAD, Stage, Telling
from stateward.cli.demo.survey import library, make_plan
from stateward.cli.show.output import CommandError, fail, milliseconds, print_table, say, size, times

if TYPE_CHECKING:
    from stateward import Thread

MIN_STEPS = 20


def demo(
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep the data in this new or empty directory."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=MIN_STEPS, metavar="N", help="Files to survey, at most.")] = 150,
) -> None:
    """Watch an agent that is killed during a run, then loses its machine, and continues at the next step each time.

    A small offline agent surveys the source of Python's standard library, one file at each step, and saves after each
    step. The demo needs no network and no running daemon, and takes half a minute at most.

    \b
    Examples:
      stateward demo
      stateward demo --steps 40 --keep ./demo-data
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    plan = make_plan()[:steps]
    if len(plan) < MIN_STEPS:
        raise CommandError(f"the demo reads the standard library's source, and {library()} has hardly any")
    started = time.perf_counter()
    with Stage(keep) as stage:
        story = Story(stage, plan)
        with stage.signals.heard():
            story.tell()
    say()
    if story.failures:
        fail(f"{len(story.failures)} checks of the demo failed: {'; '.join(story.failures)}")
        raise typer.Exit(1)
    say(f"All {story.checks} checks passed in {time.perf_counter() - started:.0f} s.", style="bold green")
    if keep is not None:
        say(f"The data are in {keep}. To look at them, start a daemon on them, and ask in another terminal:")
        listen = f"unix://{(keep / 's.sock').absolute()}"
        say(f"  stateward-sidecar --data-dir {keep}/data --key-file {keep}/data.key --listen {listen} \\")
        say(f"    --archive {(keep / 'bucket').absolute().as_uri()}")
        say(f"  stateward --target {listen} show {THREAD}")


class Story:
    """The demo from its beginning to its end."""

    def __init__(self, stage: Stage, plan: list[str]) -> None:
        self._stage = stage
        self._plan = plan
        self._lives: list[Telling] = []
        self.checks = 0
        self.failures: list[str] = []

    def tell(self) -> None:
        """Plays all scenes."""
        size_bytes = sum((library() / name).stat().st_size for name in self._plan)
        say(f"An agent will survey {len(self._plan)} files ({size(size_bytes)}) of Python's standard library,")
        say("one tool call a file, and save its state after each.")
        stage = self._stage
        self._scene("A daemon and an agent start")
        self._say_ready(stage.start_daemon())
        # Somewhere in the second sixth of the plan and in the fourth, so that there is work before and after each kill.
        self._live(self._moment(1))
        say("  SIGKILL to the agent and to the daemon in mid-run", style="bold red")
        self._scene("Agent and daemon are back; from now on a save is answered when object storage has it")
        self._say_ready(stage.start_daemon())
        self._live(self._moment(3), is_archived=True, spares_daemon=True)
        stale = stage.freeze()
        say("  the machine hangs: the agent dies, the daemon no longer answers", style="bold red")
        first = stage.daemon
        self._scene("A second machine, with an empty disk, takes over from object storage")
        second = stage.add_machine("second")
        self._say_ready(stage.start_daemon())
        with second.client() as client:  # what a supervisor does that knows of the loss; others wait ten seconds
            client.thread(THREAD).archive.attach(take_over=True)
        self._live(None, is_archived=True)
        with second.client() as client:
            done = client.thread(THREAD).hydrate()
        self._scene("The first machine comes back, and knows of nothing")
        fence(first, stale, done, self._check)
        self._scene("Both machines are lost with their disks; a third one reads it all from object storage")
        stage.lose(first)
        stage.lose(second)
        stage.add_machine("third", is_last=True)
        self._say_ready(stage.start_daemon())
        self._review(done.digest)

    def _moment(self, sixth: int) -> int:
        """Somewhere in a sixth of the plan."""
        count = len(self._plan)
        return random.randrange(count * sixth // 6, count * (sixth + 1) // 6)  # noqa: S311

    def _review(self, digest: bytes) -> None:
        with self._stage.daemon.client() as client:
            thread = client.thread(THREAD)
            started = time.perf_counter()
            state = thread.hydrate()
            say(f"  hydrated from object storage in {milliseconds(time.perf_counter() - started)}")
            self._check("it is the version that the second machine saved last", state.digest == digest)
            self._scene("Nothing was repeated, nothing was lost")
            conclusion = review_result(thread, self._plan, self._check)
            measured = review_history(client, thread, self._plan, self._check)
            say(f"  the agent's report: {conclusion}")
            self._travel(thread)
        self._scene("What it took")
        self._print_table(measured)

    def _live(self, kill_after: int | None, *, is_archived: bool = False, spares_daemon: bool = False) -> None:
        """One life of the agent, and what must be true of it."""
        before = self._lives[-1] if self._lives else None
        life = self._stage.run_agent(
            len(self._plan), kill_after=kill_after, is_archived=is_archived, spares_daemon=spares_daemon
        )
        self._lives.append(life)
        if not life.versions:
            raise CommandError("the demo's agent did nothing; its own words are above")
        if life.is_done and kill_after is not None:
            raise CommandError("the demo's agent was done before it could be killed; give it more --steps")
        if before is None:
            say(f"  the agent finds no state and makes its plan: version {life.hydrated_version + 1}")
        else:
            answered = before.versions[-1]
            say(f"  the agent hydrates version {life.hydrated_version} in {milliseconds(life.hydrate_s)}")
            self._check(
                f"the last save that was answered (version {answered}) is there",
                answered <= life.hydrated_version <= answered + 1,
            )
            if life.hydrated_version == answered + 1:
                say(f"    (version {answered + 1} had been saved too, only its answer died with the agent)")
            self._check(f"it continues with step {life.steps[0]}, the next one", life.steps[0] == life.hydrated_version)
        say(f"  steps {life.steps[0]} to {life.steps[-1]} saved, to version {life.versions[-1]}")
        self._check("each save made the next version", all(b == a + 1 for a, b in pairwise(life.versions)))
        if kill_after is None:
            self._check("the agent came to the end of its plan", life.is_done and life.steps[-1] == len(self._plan))

    def _travel(self, thread: Thread) -> None:
        self._scene("Back in time, and on from there")
        version = len(self._plan) // 2
        old = thread.hydrate(version)
        totals = old.slots["totals"]
        say(f"  version {version} knew {totals['files']} files and {totals['lines']:,} lines of code")
        self._check("an old version reads the same twice", content(thread.hydrate(version)) == content(old))
        other = review_fork(thread, version, self._check)
        say(f"  the fork surveyed {other} where the original had gone on with {self._plan[version - 1]}")

    def _print_table(self, measured: Measured) -> None:
        committed, *others = (life.save_s for life in self._lives)
        archived = [each for saves in others for each in saves]
        full = measured.full_bytes
        print_table(
            ("WHAT", "MEASURED", "IN WORDS"),
            [
                ("steps", f"{measured.steps}", "a version each, and one for the plan"),
                ("sent by the agent", size(measured.edit_bytes), _less(full, measured.edit_bytes, "what changed")),
                ("full saves", size(full), "the whole state at every step would have been"),
                ("on disk, sealed", size(measured.stored_bytes), _less(full, measured.stored_bytes, "all versions")),
                ("on disk, data file", size(measured.used_bytes), _less(full, measured.used_bytes, "pages in use")),
                ("save on this disk", *_latency(committed)),
                ("save in the bucket", *_latency(archived)),
                ("hydrate", *_latency(measured.hydrate_s)),
            ],
            right=("MEASURED",),
        )

    def _check(self, claim: str, holds: bool) -> None:
        self._stage.signals.check()
        self.checks += 1
        say(f"  {'ok' if holds else 'FAILED'}: {claim}", style="green" if holds else "bold red")
        if not holds:
            self.failures.append(claim)

    def _scene(self, title: str) -> None:
        say()
        say(title, style="bold")

    def _say_ready(self, seconds: float) -> None:
        say(f"  the daemon is ready after {seconds:.2f} s")


def _less(full: int, actual: int, what: str) -> str:
    return f"{what}; full saves are {times(full / max(actual, 1))} as much"


def _latency(seconds: list[float]) -> tuple[str, str]:
    cuts = quantiles(seconds, n=100, method="inclusive")
    return f"{milliseconds(cuts[49])}", f"p50 of {len(seconds)}; p99 {milliseconds(cuts[98])}"
