"""`stateward verify --shredded`: whether the keys of deleted threads are gone, here and in the bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from stateward.cli.show.output import counted, fail, print_json, print_table, say
from stateward.cli.show.ticker import Ticker

if TYPE_CHECKING:
    from stateward import Client
    from stateward.admin import DeletedKey, Finding

GONE, THERE, VERSIONS = "gone", "STILL THERE", "gone, old versions may be kept"


def show_shredded(client: Client, *, as_json: bool) -> None:
    """Prints each deleted thread with what is left of its key. Raises Exit with 1 unless all keys are gone."""
    with Ticker("looking for keys"):
        found, findings = _collect(client)
    rows = sorted(found.values(), key=lambda row: (str(row["deleted"] or ""), row["uid"]))
    left = [row for row in rows if THERE in (row["here"], row["bucket"]) or row["bucket"] == VERSIONS]
    if as_json:
        print_json({"threads": rows, "findings": [each.message for each in findings]})
    elif rows:
        table = [
            (row["uid"], row["namespace"], row["thread"], row["deleted"] or "", row["here"], row["bucket"])
            for row in rows
        ]
        print_table(("UID", "NAMESPACE", "THREAD", "DELETED", "KEY HERE", "KEY IN THE BUCKET"), table)
    else:
        say("no deletion is remembered")
    for each in findings:
        fail(each.message)
    if left:
        fail(
            f"{counted(len(left), 'thread')} of {len(rows):,} may still have a key; a key that is still there means "
            "that a deletion is not over (run the command again), that only the copy on one disk was deleted, or that "
            "the thread came back from the archive; old versions of objects below v1/_keys/t/ end by a rule"
        )
    if left or findings:
        raise typer.Exit(1)
    if rows and not as_json:
        say(f"all is well: the keys of {counted(len(rows), 'deleted thread')} are gone", style="green")


def _collect(client: Client) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    found: dict[str, dict[str, Any]] = {}
    findings: list[Finding] = []
    with client.verify(deleted_keys=True) as here:
        for each in here:
            if each.finding is not None:
                findings.append(each.finding)
            if each.deleted_key is not None:
                _row_of(found, each.deleted_key)["here"] = THERE if each.deleted_key.exists else GONE
    if "archive" not in client.server_info().features:
        return found, findings
    with client.archive.verify(deleted_keys=True) as archived:
        for progress in archived:
            if progress.finding is not None:
                findings.append(progress.finding)
            if (key := progress.deleted_key) is not None:
                said = THERE if key.exists else VERSIONS if key.may_have_versions else GONE
                _row_of(found, key)["bucket"] = said
    return found, findings


def _row_of(found: dict[str, dict[str, Any]], key: DeletedKey) -> dict[str, Any]:
    row = found.setdefault(
        key.uid, {"uid": key.uid, "namespace": "", "thread": "", "deleted": None, "here": "", "bucket": ""}
    )
    row["namespace"], row["thread"] = row["namespace"] or key.namespace, row["thread"] or key.thread
    if row["deleted"] is None and key.delete_time is not None:
        row["deleted"] = key.delete_time.isoformat(timespec="seconds")
    return row
