"""Options that every command takes, and the client they lead to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.output import CommandError

if TYPE_CHECKING:
    from stateward import Client

# A person waits; an agent's client has more patience.
READY_TIMEOUT_S = 3.0

TargetOption = Annotated[
    str | None, typer.Option("--target", metavar="URL", help="Where the daemon listens: unix:///path or host:port.")
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the threads; default: default.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@dataclass(frozen=True)
class Globals:
    """What was given before the name of the command."""

    target: str | None
    namespace: str | None


def connect(context: typer.Context, target: str | None, namespace: str | None) -> Client:
    """A client for the options before and after the command's name; the latter win."""
    from stateward import Client  # noqa: PLC0415  costs most of a start, and `--help` needs none

    given: Globals = context.obj
    try:
        return Client(
            target or given.target, namespace=namespace or given.namespace or "default", timeout=READY_TIMEOUT_S
        )
    except ValueError as error:
        raise CommandError(f"--target: {error}") from None
