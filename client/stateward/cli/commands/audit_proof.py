"""`stateward audit-proof`: shows that a thread continues a version whose digest somebody kept."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, ThreadArgument, connect
from stateward.cli.options.where import DIGEST_DIGITS, read_where
from stateward.cli.show.output import CommandError, clean, counted, note, print_json, print_table, say

if TYPE_CHECKING:
    from stateward.models import EntryDigest


def audit_proof(
    context: typer.Context,
    thread: ThreadArgument,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="VERSION:DIGEST", help="What was kept: a version and its digest. Default: the beginning."
        ),
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show the digests of all entries behind a version, and that each continues the one before it.

    The daemon computes each digest again from what it has stored. So a thread that passes has the whole history of the
    version that you kept, unchanged, and everything behind it. The last line is what to keep for the next time. Exit
    code 1 if the thread does not have that version with that digest, or an entry does not continue the one before it.

    \b
    Examples:
      stateward audit-proof booking-42
      stateward audit-proof booking-42 --from 12:0a1b2c3d4e5f60718293a4b5c6d7e8f9
      stateward audit-proof booking-42 --json | jq .keep
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    kept = None if since is None else _read(since)
    with connect(context, target, namespace) as client:
        handle = client.thread(thread)
        proof = handle.checkpoints.prove(kept)
        versions = [each for each in proof.entries if each.version]
    newest = versions[-1] if versions else None
    keep = f"{newest.version}:{newest.digest.hex()}" if newest is not None else since or ""
    if as_json:
        print_json(
            {
                "uid": proof.uid, "keep": keep,
                "entries": [
                    {
                        "sequence": each.sequence, "version": each.version, "digest": each.digest.hex(),
                        "previous_digest": each.previous_digest.hex(), "without_content": each.without_content,
                    }
                    for each in proof.entries
                ],
            }
        )  # fmt: skip
        return
    if proof.entries:
        rows = [[str(each.sequence), str(each.version or ""), each.digest.hex(), _said(each)] for each in proof.entries]
        print_table(["ENTRY", "VERSION", "DIGEST", ""], rows)
    first = kept[0] if kept is not None else 0
    begun = f"behind version {first} " if first else ""
    say(f"{counted(len(proof.entries), 'entry', 'entries')} {begun}continue each other")
    gone = _gaps(list(proof.entries))
    if gone:
        note(f"{counted(gone, 'entry', 'entries')} between them are gone, which a prune does and nobody can compare")
    if keep:
        say(f"keep {keep}")


def _said(entry: EntryDigest) -> str:
    return "pruned, or in the archive only" if entry.without_content else ""


def _gaps(entries: list[EntryDigest]) -> int:
    return sum(after.sequence - before.sequence - 1 for before, after in pairwise(entries))


def _read(text: str) -> tuple[int, bytes]:
    number, _, digest = text.partition(":")
    where = read_where(number, "--from")
    if not isinstance(where, int) or len(digest) != DIGEST_DIGITS or not set(digest.lower()) <= set("0123456789abcdef"):
        raise CommandError(f"--from {clean(text)}: give VERSION:DIGEST, such as 15:{'0a' * 16}")
    return where, bytes.fromhex(digest)
