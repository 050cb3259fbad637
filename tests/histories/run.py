"""Plays and checks histories, several at a time, and says what was found."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bucket.weed import WeedMissing, make_s3_bucket, running_weed
from tests.histories.checker import NoChecker, build_checker, check_history
from tests.histories.play import BUCKET, play
from tests.histories.scenarios import scenario_of
from tests.processes import MARK, end_marked

TELL_EVERY_S = 60.0


@dataclass
class Verdict:
    """What became of a seed."""

    seed: int
    name: str
    path: Path
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_one(seed: int, directory: Path, program: Path, server: str | None) -> Verdict:
    """Plays and checks one history. Its files are kept if something is found."""
    scenario = scenario_of(seed)
    verdict = Verdict(seed, scenario.name, directory / f"history-{seed}.jsonl")
    begun = time.monotonic()
    try:
        verdict.counts = play(seed, scenario, verdict.path, server)
        verdict.violations = [str(violation) for violation in check_history(program, verdict.path)]
    except Exception as error:  # noqa: BLE001  (whatever it is, the seed has no verdict)
        verdict.violations = ["not played: " + "".join(traceback.format_exception(error))]
    verdict.seconds = time.monotonic() - begun
    if not verdict.violations:
        for kept in directory.glob(f"history-{seed}[-.]*"):
            kept.unlink()
    return verdict


def end_everything(pool: ProcessPoolExecutor) -> None:
    """Somebody interrupts the run: all processes that it started are killed."""
    pool.shutdown(wait=False, cancel_futures=True)
    end_marked(os.environ[MARK], patience_s=0)


@contextmanager
def running_server(directory: Path) -> Iterator[str]:
    """An S3 server with the bucket of the histories. Raises WeedMissing."""
    directory.mkdir()
    with running_weed(directory) as server:
        make_s3_bucket(server, BUCKET)
        yield server


def run_many(
    seeds: Iterable[int], directory: Path, jobs: int, tell: Callable[[str], None]
) -> tuple[list[Verdict], str]:
    """All verdicts, and why histories were left out; empty: none was."""
    try:
        program = build_checker(directory)
    except NoChecker as error:
        return [], str(error)
    chosen, reason, verdicts = list(seeds), "", list[Verdict]()
    with ExitStack() as stack:
        server: str | None = None
        try:
            if any(scenario_of(seed).archive == "s3" for seed in chosen):
                server = stack.enter_context(running_server(directory / "weed"))
        except WeedMissing as error:
            reason = f"no histories on S3: {error}"
            chosen = [seed for seed in chosen if scenario_of(seed).archive != "s3"]
        pool = stack.enter_context(ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")))
        waiting: list[Future[Verdict]] = [pool.submit(run_one, seed, directory, program, server) for seed in chosen]
        stack.push(lambda kind, *_: end_everything(pool) if kind is not None else None)
        told = time.monotonic()
        for done in as_completed(waiting):
            verdict = done.result()
            verdicts.append(verdict)
            for violation in verdict.violations:
                tell(f"FINDING: seed {verdict.seed} ({verdict.name}), {verdict.path}: {violation}")
            if time.monotonic() - told > TELL_EVERY_S:
                told, bad = time.monotonic(), sum(bool(each.violations) for each in verdicts)
                tell(f"{len(verdicts)} of {len(chosen)} histories, {bad} bad")
    return verdicts, reason
