"""`stateward approve`, `reject`, `answer` and `signal`: messages from people to agents."""

from __future__ import annotations

import getpass
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.options.askings import send_to
from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, ThreadArgument
from stateward.cli.options.embedded import ArchiveOption, KeyFileOption, reach
from stateward.cli.options.typed import read_json
from stateward.cli.show.describe import compact, quoted
from stateward.cli.show.output import CommandError, clean, confirm, note, print_json, say
from stateward.errors import NotOwner, StaleAnswer
from stateward.models import Status
from stateward.signals import ANSWER, APPROVE, REJECT, AnswerRefused, SchemaNotChecked, Signal

if TYPE_CHECKING:
    from stateward import Client, Thread, ThreadInfo
    from stateward.signals import Question

INPUT_BYTES_MAX = 64 << 10
# The daemon needs time for its reads, beyond the lease time for which it must see the thread unchanged.
FREE_MARGIN_S = 2.0
ANSWER_WIDTH = 200
# A longer question is shown on lines of its own.
LINE_WIDTH = 200

WaitIdOption = Annotated[
    str | None,
    typer.Option("--wait-id", metavar="ID", help="Id of the question, from `stateward waiting`; then it does not ask."),
]
AnswerYesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask: answer the question that is open now, whatever it is.")
]
PartOption = Annotated[
    str | None,
    typer.Option("--part", metavar="NAME", help="Answer only this part of the question: the beginning of its name."),
]
SenderOption = Annotated[
    str | None, typer.Option("--as", metavar="SENDER", help="Name of the sender; default: the login name.")
]
JsonValueOption = Annotated[
    str | None, typer.Option("--json", metavar="JSON", help="The value as JSON; - reads it from stdin.")
]


def approve(
    context: typer.Context,
    thread: ThreadArgument,
    remark: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="A note for the agent.")] = None,
    wait_id: WaitIdOption = None,
    sender: SenderOption = None,
    yes: AnswerYesOption = False,
    archive: ArchiveOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Answer yes to a thread's question.

    On a terminal the command shows the question that is open now, and asks whether that is the one. In a script it
    answers the question that is open now, and prints what it answered; give the --wait-id of the question that a person
    has read. The thread must still be waiting for the answer. The command fails if the question was asked again or
    already answered.

    With --archive no daemon needs to run: the command starts one, which takes the thread, archives the answer and
    releases the thread. If a dead machine holds the thread, the command waits until that machine has archived nothing
    for ten seconds; then it takes the thread.

    \b
    Examples:
      stateward approve booking-42 --note "but window seats"
      stateward approve booking-42 --wait-id 5f0c2a9d81e3b764
      stateward approve booking-42 --archive s3://bucket/agents --key-file KEY
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    where = (context, target, namespace, archive, key_file)
    _say(APPROVE, thread, remark, wait_id, sender, where, ask=None if yes else "Say yes to it", as_json=as_json)


def reject(
    context: typer.Context,
    thread: ThreadArgument,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="The reason, for the agent.")] = None,
    wait_id: WaitIdOption = None,
    sender: SenderOption = None,
    yes: AnswerYesOption = False,
    archive: ArchiveOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Answer no to a thread's question, whatever form the question asks for. The command asks first, as approve does.

    \b
    Examples:
      stateward reject booking-42 --reason "too dear"
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    where = (context, target, namespace, archive, key_file)
    _say(REJECT, thread, reason, wait_id, sender, where, ask=None if yes else "Say no to it", as_json=as_json)


def answer(
    context: typer.Context,
    thread: ThreadArgument,
    value: Annotated[
        str | None, typer.Argument(metavar="[VALUE]", help="The answer as text; - reads it from stdin.")
    ] = None,
    as_json: JsonValueOption = None,
    part: PartOption = None,
    wait_id: WaitIdOption = None,
    sender: SenderOption = None,
    yes: AnswerYesOption = False,
    archive: ArchiveOption = None,
    key_file: KeyFileOption = None,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Answer a thread's question. If the question has a JSON schema, the command checks the answer. It asks first, as
    approve does.

    A framework may ask several things at once. Answer one of them with --part, or some of them with a JSON object of
    names and answers. An asking takes one answer: the agent uses it when it runs, and asks again for the others.

    \b
    Examples:
      stateward answer booking-42 "the early flight"
      stateward answer booking-42 --json '{"seat": "12A", "meal": false}'
      stateward answer booking-42 --part 3f9c "window"
      stateward answer booking-42 --json '{"3f9c…": "window", "a07e…": true}'
      jq .choice page.json | stateward answer booking-42 --json - --yes
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if value is None and as_json is None:
        raise typer.BadParameter("give the answer as VALUE or with --json", param_hint="VALUE")
    content = _read_value(value, as_json, "VALUE")
    where = (context, target, namespace, archive, key_file)
    ask = None if yes else f"Answer {compact(content, ANSWER_WIDTH)}"
    _say(ANSWER, thread, content, wait_id, sender, where, ask=ask, part=part)


def signal(
    context: typer.Context,
    thread: ThreadArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the signal, such as cancel.")],
    payload: Annotated[
        str | None, typer.Argument(metavar="[PAYLOAD]", help="The content as text; - reads it from stdin.")
    ] = None,
    as_json: JsonValueOption = None,
    wait_id: WaitIdOption = None,
    sender: SenderOption = None,
    archive: ArchiveOption = None,
    key_file: KeyFileOption = None,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Send a message to a thread's agent, even if it waits for none. The thread keeps it until a save acknowledges it.

    With --archive the command starts a daemon, which takes the thread. It does not take a working thread from another
    sidecar: send the signal through that sidecar, with --target.

    \b
    Examples:
      stateward signal booking-42 cancel
      stateward signal booking-42 price --json 1350
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    content = _read_value(payload, as_json, "PAYLOAD")
    _say(name, thread, content, wait_id, sender, (context, target, namespace, archive, key_file))


def _say(
    name: str,
    thread: str,
    content: Any,
    wait_id: str | None,
    sender: str | None,
    where: Any,
    *,
    ask: str | None = "",
    as_json: bool = False,
    part: str | None = None,
) -> None:
    """Sends a signal. `ask`: what the person is asked about the open question; None = nothing, and "" = the signal is
    no answer. `part`: the part of the question that it answers; None = all of it."""
    archive = where[3]
    if sender == "":
        raise typer.BadParameter("is empty; leave it out to use the login name", param_hint="--as")
    if sender is not None and not sender.isprintable():
        raise typer.BadParameter(f"{sender!a} has characters that cannot be shown", param_hint="--as")
    with warnings.catch_warnings(record=True) as caught, reach(*where) as client:
        warnings.simplefilter("always", SchemaNotChecked)
        sender = _login_name() if sender is None else sender
        try:
            is_archived, handle = archive is not None, client.thread(thread)
            options: dict[str, Any] = {"sender": sender, "durability": "archived" if is_archived else None}
            info = handle.info() if ask != "" else None
            if part is not None:
                content = _to_part(info, part, content)
            shown = _agreed(handle, info, ask) if info is not None and not wait_id else None
            wait_id = shown.wait_id if shown is not None else wait_id
            send = partial(_sender(handle, name, is_answer=ask != ""), content, wait_id=wait_id, **options)
            act = partial(_send_when_free, client, thread) if is_archived else _at_once
            sent = act(send) if shown is None else send_to(handle, shown, lambda given: act(partial(send, **given)))
        except AnswerRefused as error:
            raise CommandError(f"nothing was sent: {error}; use --json for an answer that is not text") from None
        except StaleAnswer as error:
            raise CommandError(f"{error.message}; {_what_is_open(info)}") from None
        except NotOwner as error:
            if archive is None:
                raise
            raise CommandError(
                f"{error.message}; leave --archive out and send it there, with --target or on that machine; if that "
                "machine is dead, `stateward attach --take-over` on a daemon of this archive takes the thread"
            ) from None
        if archive is not None:
            client.thread(thread).archive.detach()
    for each in caught:
        note(str(each.message))
    what = f"question {clean(sent.wait_id)}" if sent.wait_id else "no question"
    asked = info.question if info is not None and info.wait_id == sent.wait_id else None
    if as_json:
        facts = {"thread": thread, "id": sent.id, "name": sent.name, "sender": sent.sender, "wait_id": sent.wait_id}
        print_json({**facts, "prompt": None if asked is None else asked.prompt})
        return
    if asked is not None:
        what = f"{clean(quoted(asked))} ({what})"
    say(f"{clean(thread)}: {clean(sent.name)}, as {clean(sent.sender)}, to {what}")


def _what_is_open(info: ThreadInfo | None) -> str:
    """What helps after an answer that came too late."""
    if info is None or info.question is None or len(info.question.parts) < 2:
        return "`stateward waiting` lists the open questions"
    return (
        "run the agent, which uses the answer and asks again for the other parts; to answer several parts at once, "
        "give answer --json an object of their names"
    )


def _send_when_free(client: Client, thread: str, send: Callable[[], Signal]) -> Signal:
    """Sends; waits first if another sidecar holds the waiting thread. A dead sidecar is known only after some time.

    Does not wait if the thread's agent works: a working agent may be silent for minutes in a call, and would lose the
    versions that it saved meanwhile.
    """
    try:
        return send()
    except NotOwner as error:
        if error.free_in is None or client.thread(thread).info().status != Status.WAITING:
            raise
        note(f"{error.message}; waiting for that")
        wait_s = error.free_in.total_seconds() + FREE_MARGIN_S
    client.thread(thread).archive.attach(wait=wait_s)
    return send()


def _show(intro: str, question: Question) -> str:
    """Returns how the question of a prompt begins. Prints a long question first, whole, on its own lines."""
    text = quoted(question)
    if len(text) <= LINE_WIDTH:
        return f"{intro}: {text}. "
    lines = [line for each in _texts(question) for line in each.splitlines() if line.strip()]
    print("\n".join([f"{clean(intro)}:", *(f"  {clean(line)}" for line in lines)]), file=sys.stderr, flush=True)
    return ""


def _texts(question: Question) -> list[str]:
    if len(question.parts) < 2:
        return [question.prompt]
    return [f"{part.name}: {part.prompt}" for part in question.parts]


def _to_part(info: ThreadInfo | None, part: str, content: Any) -> dict[str, Any]:
    """Returns the answer to one part of the open question, which is named by the beginning of its name."""
    parts = info.question.parts if info is not None and info.question is not None else ()
    found = [each.name for each in parts if each.name == part] or [
        each.name for each in parts if each.name.startswith(part)
    ]
    if len(found) != 1:
        names = ", ".join(each.name for each in parts)
        what = f"fits {len(found)} parts of the question" if found else "is no part of the question"
        raise CommandError(f"--part: {part!r} {what}; it has {f'the parts {names}' if names else 'no parts'}")
    return {found[0]: content}


def _agreed(thread: Thread, info: ThreadInfo, ask: str | None) -> ThreadInfo | None:
    """Shows the open question, and asks if there is a terminal. Returns the thread as it was shown; None if there is
    nothing to show."""
    question = info.question
    if question is None or info.status != Status.WAITING:
        return None  # sending raises the error that says why
    if info.pending_signals and any(each.wait_id == info.wait_id for each in thread.signals.list()):
        return info  # answered already, which the error says
    if not ask or not sys.stdin.isatty():
        return info
    reason = f" ({info.status_detail})" if info.status_detail else ""
    shown = _show(f"Thread {info.name!r} asks{reason}", question)
    confirm(f"{shown}{ask}?", yes=False, otherwise="nothing was sent")
    return info


def _at_once(send: Callable[[], Signal]) -> Signal:
    return send()


def _sender(thread: Thread, name: str, *, is_answer: bool) -> Callable[..., Signal]:
    answers: dict[str, Callable[..., Signal]] = {
        ANSWER: thread.answer, APPROVE: thread.approve, REJECT: thread.reject
    }  # fmt: skip
    return answers[name] if is_answer else partial(thread.signals.send, name)


def _read_value(text: str | None, as_json: str | None, what: str) -> Any:
    """Returns the given text or the value of the given JSON; None = neither was given."""
    if text is not None and as_json is not None:
        raise typer.BadParameter(f"give {what} or --json, not both", param_hint="--json")
    if as_json is None:
        return _read_input() if text == "-" else text
    try:
        return read_json(_read_input() if as_json == "-" else as_json, "--json")
    except ValueError as error:
        raise CommandError(f"--json: this is not JSON: {error}") from None


def _read_input() -> str:
    data = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
    if len(data) > INPUT_BYTES_MAX:
        raise CommandError(f"stdin has more than {INPUT_BYTES_MAX:,} bytes, the largest size of a signal")
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise CommandError("stdin is not UTF-8") from None


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return Path.home().name or "somebody"
