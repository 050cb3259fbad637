"""The command of `make soak`.

    python -m tests.soak --minutes 30 --losses 60 --seed 7

Each part can be left out with 0. The exit code is 1 when something was found; what is needed to look into it is kept.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.soak.campaign import Campaign
from tests.soak.histories import run_histories
from tests.soak.life import short_directory
from tests.soak.losses import Losses, run_losses
from tests.soak.recording import why_not
from tests.soak.stage import CampaignStage
from tests.soak.work import is_recorded, load_work

LINES_MAX = 40


def main() -> int:
    """Runs all parts, prints a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Abuses a daemon, and checks its word.")
    parser.add_argument("--minutes", type=float, default=30, help="of histories and campaign together (default: 30)")
    parser.add_argument("--histories", type=float, default=1 / 3, help="their share of the minutes (default: a third)")
    parser.add_argument("--losses", type=int, default=60, help="power losses (default: 60)")
    parser.add_argument("--agents", type=int, default=8, help="client processes of the campaign (default: 8)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of all dice (default: another one)")
    parser.add_argument("--directory", type=Path, help="where to work (default: a temporary one)")
    options = parser.parse_args()
    os.umask(0o077)  # for the key files that it writes
    directory = options.directory or Path(tempfile.mkdtemp(prefix="soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    again = f"python -m tests.soak --minutes {options.minutes:g} --losses {options.losses} --agents {options.agents}"
    again += f" --histories {options.histories:g} --seed {options.seed}"
    work = "recorded" if is_recorded() else "made-up (no recorded runs beside the repository)"
    say(f"seed {options.seed}; {len(load_work())} runs, {work}; to run it again: {again}")
    table, findings = Counter[str](), list[str]()
    if options.losses:
        lose_power(directory / "losses", options.losses, options.seed, table, findings)
    histories = options.minutes * min(options.histories, 1)
    if histories:
        say(f"histories of two sidecars and a bucket, for {histories:g} minutes")
        run_histories(directory, histories, options.seed, table, findings, say)
    if options.minutes > histories:
        run_campaign(directory / "campaign", options.minutes - histories, options.seed, options.agents, table, findings)
    say("")
    for name, count in table.items():
        say(f"{name:>38}  {count:,}")
    say(f"{'findings':>38}  {len(findings)}")
    for finding in findings[:LINES_MAX]:
        say(f"  {finding}")
    if findings:
        say(f"kept in {directory}; to run it again: {again}")
        return 1
    if options.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def lose_power(directory: Path, count: int, seed: int, table: Counter[str], findings: list[str]) -> None:
    """The power losses, where they can be recorded."""
    if why_not():
        say(f"no power losses: {why_not()}")
        return
    directory.mkdir()
    losses: Losses = run_losses(directory, count, seed, say)
    table["power losses"] = losses.made
    table["states compared after them"] = losses.done["states"]
    table["records compared after them"] = losses.done["records"]
    table["results compared after them"] = losses.done["results"]
    for refusal, times in losses.refusals.items():
        say(f"{times} × refused before anything was promised: {refusal}")
    table["first starts refused clearly"] = sum(losses.refusals.values())
    findings += losses.findings


def run_campaign(
    directory: Path, minutes: float, seed: int, agents: int, table: Counter[str], findings: list[str]
) -> None:
    """The campaign, on a small disk."""
    directory.mkdir()
    with short_directory() as short:
        stage = CampaignStage(directory, short, seed, agents, say)
        try:
            say(f"{agents} agents on {stage.disk.what} for {minutes:g} minutes")
            Campaign(stage).run(minutes)
        finally:
            if stage.findings:
                shutil.copytree(stage.daemon.data_dir, directory / "data", dirs_exist_ok=True)
                (directory / "daemon.stderr").write_text(stage.daemon.stderr)
            stage.disk.close()
        table.update(stage.counts)
        findings += stage.findings


def say(text: str) -> None:
    """A line, at once."""
    print(time.strftime("%H:%M:%S ") + text if text else "", flush=True)


if __name__ == "__main__":
    sys.exit(main())
