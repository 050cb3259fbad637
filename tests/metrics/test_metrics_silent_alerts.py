"""The danger: an alert that never fires, a panel that stays empty, and a name that nobody explains.

Rules and dashboard are read against what a real daemon exports; a real Prometheus runs the rules on recorded series.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.daemon.process import Fleet, write_steps
from tests.metrics.expressions import labels_in, names_in
from tests.metrics.scraped import ANY_PORT, Scrape, scrape_until

SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",), "gauge": ("",)}
# What Prometheus adds itself.
ADDED_LABELS = {"instance", "job", "le"}
TARGET = {"instance": "agent-1:9464", "job": "stateward"}
STEP, STEPS = "1m", 80


def promtool() -> str:
    """The program of Debian's package `prometheus`: installed, or unpacked by `make promtool`."""
    unpacked = Path(__file__).resolve().parents[2] / "build/promtool/usr/bin/promtool"
    found = str(unpacked) if unpacked.is_file() else shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool; `make promtool` unpacks Debian's")
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scrape]:
    """A scrape of a healthy daemon with an archive, after some work."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        daemon = fleet.machine("first", metrics=ANY_PORT)
        client = fleet.client(daemon)
        write_steps(client, "job", 3, archived=True)
        client.thread("job").hydrate()
        yield scrape_until(daemon, lambda now: "stateward_threads" in now.names)
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def exported(recorded: Scrape) -> dict[str, set[str]]:
    """The names of series, by the families' types, with the labels that were seen. Families may be without series."""
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(recorded.text):
        labels = {label for sample in family.samples for label in sample.labels}
        for suffix in SUFFIXES[family.type]:
            names[family.name + suffix] = labels
    return names


@pytest.fixture(scope="module")
def rules(repository: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load((repository / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def panels(repository: Path) -> dict[str, str]:
    """Expressions of the dashboard by panel and letter."""
    dashboard = json.loads((repository / "deploy/grafana/stateward.json").read_text())
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(numbers) == len(set(numbers))
    return {
        f"{panel['id']} {panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    }


def check_names(expression: str, exported: dict[str, set[str]]) -> None:
    names = names_in(expression) - {"up"}
    assert names <= exported.keys(), names - exported.keys()
    known = ADDED_LABELS.union(*(exported[name] for name in names))
    for name, labels in labels_in(expression).items():
        # A family without series has shown no labels: those of the bucket's errors.
        if name == "up" or (name and not exported[name]):
            continue
        if "stateward_bucket_errors_total" not in names:
            assert labels <= known, labels - known


def test_alerts_use_what_is_exported(rules: list[dict[str, Any]], exported: dict[str, set[str]]) -> None:
    """No rule names a metric or a label that no daemon has."""
    assert len(rules) >= 15
    for rule in rules:
        check_names(rule["expr"], exported)


def test_panels_use_what_is_exported(panels: dict[str, str], exported: dict[str, set[str]]) -> None:
    """No panel of the dashboard names a metric or a label that no daemon has."""
    assert len(panels) >= 40
    for expression in panels.values():
        check_names(expression, exported)


def test_everything_is_shown_and_explained(
    repository: Path, panels: dict[str, str], exported: dict[str, set[str]]
) -> None:
    """Every metric of the daemon has a panel and a line on the page, and the page has no others."""
    ours = {name for name in exported if name.startswith("stateward_")}
    shown = set().union(*map(names_in, panels.values()))
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in ours}
    assert families - {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown} == set()
    page = (repository / "docs/monitoring.md").read_text()
    tables = page[page.index("## Metrics") : page.index("## Alerts")]
    named = set(re.findall(r"`(stateward_[a-z_]+)", tables))
    named |= {f"stateward_archive{rest}" for rest in re.findall(r"`…(_[a-z_]+)", tables)}
    assert families - named == set()
    assert named - families == set()


def test_each_alert_has_a_paragraph(repository: Path, rules: list[dict[str, Any]]) -> None:
    """The runbook's headings are the alerts, in any order, and each alert leads to its own."""
    page = (repository / "docs/monitoring.md").read_text()
    headings = re.findall(r"^### (Stateward\w+)$", page, re.MULTILINE)
    assert sorted(headings) == sorted(rule["alert"] for rule in rules)
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"docs/monitoring.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    inside = ",".join(f'{label}="{value}"' for label, value in {**TARGET, **labels}.items())
    return {"series": f"{name}{{{inside}}}", "values": values}


def healthy(recorded: Scrape) -> list[dict[str, str]]:
    """The recorded series; counters go on as they are, and so does everything else."""
    every = [series(name, f"{value:g}x{STEPS}", **dict(labels)) for (name, labels), value in recorded.values.items()]
    return [*every, series("up", f"1x{STEPS}")]


def slow(name: str, **labels: str) -> list[dict[str, str]]:
    """A histogram whose values all lie above 10 s."""
    bounds = {"0.05": "0", "0.1": "0", "10.0": "0", "+Inf": "0+60"}
    return [series(f"{name}_bucket", f"{each}x{STEPS}", le=bound, **labels) for bound, each in bounds.items()]


# For each alert, series that replace or join the healthy ones.
FAULTS: dict[str, list[dict[str, str]]] = {
    "StatewardDown": [series("up", f"0x{STEPS}")],
    "StatewardRestarting": [series("process_start_time_seconds", f"1+60x{STEPS}")],
    "StatewardNotReady": [series("stateward_not_ready", f"1x{STEPS}", cause="disk")],
    "StatewardErrors": [series("stateward_refusals_total", f"0+1x{STEPS}", reason="INTERNAL")],
    "StatewardBackgroundFailures": [series("stateward_background_failures_total", f"0+1x{STEPS}")],
    "StatewardDamagedData": [series("stateward_decrypt_failures_total", f"0+1x{STEPS}")],
    "StatewardUnreadableThreads": [series("stateward_unreadable_threads", f"1x{STEPS}")],
    "StatewardLittleRoom": [series("stateward_room_bytes", f"10000000000-100000000x{STEPS}")],
    "StatewardStuckReader": [
        series("stateward_oldest_reader_seconds", f"0+60x{STEPS}"),
        series("stateward_oldest_reader_transactions", f"0+1000x{STEPS}"),
    ],
    "StatewardSlowCommits": slow("stateward_commit_duration_seconds"),
    "StatewardSlowSaves": slow("stateward_call_duration_seconds", method="Save", code="OK"),
    "StatewardOverloaded": [series("stateward_refusals_total", f"0+5x{STEPS}", reason="QUEUE_FULL")],
    "StatewardManyConflicts": [
        series("stateward_conflicts_total", f"0+60x{STEPS}"),
        series("stateward_saves_total", f"0+60x{STEPS}"),
    ],
    "StatewardManyDenied": [series("stateward_denied_calls_total", f"0+60x{STEPS}", method="Save")],
    "StatewardAuditLog": [series("stateward_audit_failing", f"1x{STEPS}")],
    "StatewardFewFiles": [
        series("process_open_fds", f"900x{STEPS}"),
        series("process_max_fds", f"1024x{STEPS}"),
    ],
    "StatewardArchiveLag": [series("stateward_archive_lag_seconds", f"0+60x{STEPS}")],
    "StatewardBucketErrors": [
        series("stateward_bucket_errors_total", f"0+30x{STEPS}", operation="replace", kind="BucketUnavailable"),
        series("stateward_bucket_request_duration_seconds_count", f"0+60x{STEPS}", operation="replace"),
    ],
    "StatewardFenced": [series("stateward_fencings_total", f"0+1x{STEPS}")],
    "StatewardBucketSetBack": [series("stateward_archive_rolled_back_threads", f"2x{STEPS}")],
    "StatewardUncertainEffects": [series("stateward_effects_uncertain", f"1x{STEPS}")],
    "StatewardOldQuestion": [series("stateward_oldest_question_seconds", f"86000+60x{STEPS}")],
}


def firing(alerts: list[str]) -> dict[str, Any]:
    """Exactly these alerts fire at the end."""
    return {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": "75m",
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
    }


def run_rules(repository: Path, tmp_path: Path, cases: dict[str, tuple[list[dict[str, str]], list[str]]]) -> str:
    """Lets Prometheus run the rules on each case. Returns what it says if one is wrong."""
    tests = [
        {"name": name, "interval": STEP, "input_series": given, "promql_expr_test": [firing(alerts)]}
        for name, (given, alerts) in cases.items()
    ]
    file = tmp_path / "test.yaml"
    rules = str(repository / "deploy/prometheus/alerts.yaml")
    file.write_text(yaml.safe_dump({"rule_files": [rules], "evaluation_interval": STEP, "tests": tests}))
    done = subprocess.run([promtool(), "test", "rules", file], capture_output=True, text=True, check=False, timeout=100)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_each_alert_fires_alone(
    repository: Path, tmp_path: Path, recorded: Scrape, rules: list[dict[str, Any]]
) -> None:
    """On the recorded series nothing fires; with each fault on top, its alert does, and no other."""
    assert FAULTS.keys() == {rule["alert"] for rule in rules}
    well = healthy(recorded)
    cases: dict[str, tuple[list[dict[str, str]], list[str]]] = {"healthy": (well, [])}
    for alert, faults in FAULTS.items():
        replaced = {each["series"] for each in faults}
        cases[alert] = [each for each in well if not _is_replaced(each["series"], replaced)] + faults, [alert]
    assert run_rules(repository, tmp_path, cases) == ""


def _is_replaced(each: str, replaced: set[str]) -> bool:
    labels = frozenset(re.findall(r'\w+="[^"]*"', each))
    name = each.partition("{")[0]
    return any(
        name == other.partition("{")[0] and labels == frozenset(re.findall(r'\w+="[^"]*"', other)) for other in replaced
    ) or (name.endswith("_bucket") and any(other.startswith(f"{name}{{") for other in replaced))


def test_a_drain_is_no_alert(repository: Path, tmp_path: Path, recorded: Scrape) -> None:
    """An operator who drains a machine is not woken."""
    drained = series("stateward_not_ready", f"1x{STEPS}", cause="draining")
    given = [each for each in healthy(recorded) if not _is_replaced(each["series"], {drained["series"]})]
    assert run_rules(repository, tmp_path, {"drained": ([*given, drained], [])}) == ""


def test_expressions_are_promql(repository: Path, tmp_path: Path, panels: dict[str, str]) -> None:
    """Prometheus parses every rule, and every expression of the dashboard."""
    recording = [
        {"record": f"panel_{number}", "expr": each.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, each in enumerate(panels.values())
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recording}]}))
    for path in (file, repository / "deploy/prometheus/alerts.yaml"):
        done = subprocess.run([promtool(), "check", "rules", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
