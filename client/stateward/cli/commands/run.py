"""`stateward run`: starts an agent's command when signals wait for the agent."""

from __future__ import annotations

import math
import shlex
from typing import Annotated

import typer

from stateward.cli.commands.starter import Chosen, Pauses, Starter
from stateward.cli.commands.threads import read_labels
from stateward.cli.options.connect import NamespaceOption, TargetOption, connect

# While the daemon is away, SIGTERM waits for the look that is under way.
PATIENCE_S = 5.0
PAUSE_MAX_S = 30 * 86400.0


def check_number(seconds: float) -> float:
    """Returns the length of a pause. Raises BadParameter for "nan", which may pass the limits."""
    if math.isnan(seconds):
        raise typer.BadParameter("it is not a number")
    return seconds


def run(
    context: typer.Context,
    command: Annotated[
        str,
        typer.Option("--on-signal", metavar="CMD", help="Shell command that starts a thread's agent, in quotes."),
    ],
    words: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="")] = None,
    thread: Annotated[
        list[str] | None, typer.Option("--thread", metavar="NAME", help="Only this thread; repeatable.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="Only threads with this label.")
    ] = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="Start one agent at a time, and end when one has acknowledged its signals."),
    ] = False,
    at_most: Annotated[
        int, typer.Option("--at-most", metavar="N", min=1, help="How many commands may run at a time.")
    ] = 16,
    poll_s: Annotated[
        float,
        typer.Option(
            "--poll",
            metavar="SECONDS",
            min=0.1,
            max=PAUSE_MAX_S,
            callback=check_number,
            help="How often to look for answers sent elsewhere.",
        ),
    ] = 30.0,
    pause_s: Annotated[
        float,
        typer.Option(
            "--pause",
            metavar="SECONDS",
            min=0.01,
            max=PAUSE_MAX_S,
            callback=check_number,
            help="First pause after a command that failed.",
        ),
    ] = 1.0,
    detached: Annotated[
        bool, typer.Option("--detached", help="The command starts the agent elsewhere, and ends before the agent does.")
    ] = False,
    acknowledged_s: Annotated[
        float,
        typer.Option(
            "--ack-within",
            metavar="SECONDS",
            min=0.1,
            max=PAUSE_MAX_S,
            callback=check_number,
            help="Time for the agent after a command that ended with 0.",
        ),
    ] = 600.0,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Start the agent's command for each thread with waiting signals, now and whenever a signal arrives.

    The command finds STATEWARD_THREAD, STATEWARD_NAMESPACE and STATEWARD_TARGET in its environment. It hydrates the
    thread and finds the answer to its question in `state.answer`, which the next save acknowledges. It finds all
    signals in `state.signals`, and names those that are no answer in `save(ack=…)`. One command runs for a thread at a
    time, without a terminal.

    A command that fails and has acknowledged nothing is started again after a pause, which doubles up to a minute. Exit
    code 0 means that an agent was started: the command is started again for the same signals only if they still wait
    after 600 seconds (--ack-within). Another signal starts it at once. With --detached another signal does not start it
    while the agent still has signals to acknowledge, and --at-most counts such agents, too.

    On SIGTERM, this command passes the signal to the running commands and ends after them. It waits 20 seconds for all
    processes that a command has started in its group, and kills those that are left. If its terminal is closed
    (SIGHUP), it starts no command any more, gives the running ones 20 seconds, and then ends as after SIGTERM; under
    nohup it goes on. After SIGKILL they continue to run, and the next `stateward run` does not know them and starts a
    second command for the same thread. An agent that must run alone takes its thread's lease (thread.writer).

    With an archive, this command also finds answers that were sent through another sidecar. Every --poll seconds it
    reads the waiting threads that this daemon knows and does not hold, or those named with --thread. Without --thread
    it also lists all waiting threads in the archive, at the start and after every tenth poll, because a list costs a
    request for each thread; so a new machine finds the threads to continue. If several machines do this, each may start
    the agent, and the first one that writes gets the thread.

    \b
    Examples:
      stateward run --on-signal 'python agent.py'
      stateward run --on-signal 'python agent.py' --thread booking-42 --once
      stateward run --on-signal 'kubectl create job …' --detached
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if words:
        quoted = shlex.quote(" ".join((command, *words)))
        raise typer.BadParameter(f"the command is one text, so quote it: {quoted}", param_hint="--on-signal")
    if not command.strip():
        raise typer.BadParameter("it is empty", param_hint="--on-signal")
    chosen = Chosen(frozenset(thread or ()), read_labels(label or ()))
    with connect(context, target, namespace, retry_timeout_s=PATIENCE_S) as client:
        client.server_info()  # from here on a daemon that is away is waited for
        pauses = Pauses(poll_s=poll_s, first_s=pause_s, acknowledged_s=acknowledged_s)
        Starter(client, command, chosen, pauses, at_most=at_most, is_once=once, is_detached=detached).run()
