"""The commands: where each one is, and the line about it in `stateward --help`.

A command's module is imported when the command is asked for, so that help and completion start fast and a command
pays for nothing but itself.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Entry(NamedTuple):
    """A command: the function (or group of commands) in a module of `commands`, and what it does."""

    place: str
    summary: str


SECTIONS: dict[str, dict[str, Entry]] = {
    "Look": {
        "threads": Entry("threads:threads", "List threads, the most recently changed first."),
        "show": Entry("show:show", "Show a thread's state, now or at an earlier version."),
        "history": Entry("history:history", "List a thread's versions, newest first."),
        "diff": Entry("diff:diff", "Show what changed from one version to another."),
        "replay": Entry("replay:replay", "Walk a run step by step."),
        "watch": Entry("watch:watch", "Print changes as they happen."),
        "effects": Entry("effects:effects", "List the recorded tool calls of a thread."),
        "records": Entry("records:records", "List, show, write and delete records."),
        "workspace": Entry("workspace:workspace", "Keep the files of a directory with a thread."),
        "tools": Entry("tools:tools", "Count which tools agents called, and which failed."),
        "failures": Entry("tools:failures", "Show the last failure of each run."),
    },
    "Change": {
        "branch": Entry("branch:branch", "Start, list, move and delete branches of a thread."),
        "fork": Entry("fork:fork", "Copy a thread, or one version of it, to a new one."),
        "tag": Entry("tag:tag", "Set, list or remove tags, which are names for versions."),
        "prune": Entry("prune:prune", "Remove old versions of a thread."),
        "migrate": Entry("migrate:migrate", "Migrate threads to your program's schema."),
        "rm": Entry("rm:rm", "Remove threads for good."),
    },
    "Answer": {
        "waiting": Entry("waiting:waiting", "List the threads that wait, and their questions."),
        "approve": Entry("approve:approve", "Answer yes to a thread's question."),
        "reject": Entry("approve:reject", "Answer no to a thread's question."),
        "answer": Entry("approve:answer", "Answer a thread's question."),
        "signal": Entry("approve:signal", "Send a thread's agent a message."),
        "run": Entry("run:run", "Start an agent's command when a signal waits for it."),
    },
    "Move": {
        "import": Entry("import_:import_", "Import runs, exported versions, LangGraph databases."),
        "export": Entry("export:export", "Write threads to a file that import reads."),
    },
    "Archive": {
        "archive": Entry("archive:archive", "Manage the archive in object storage."),
        "restore": Entry("archive_restore:restore", "Copy threads from the archive to this disk."),
        "attach": Entry("attach:attach", "Make this daemon the owner of a thread in the archive."),
        "detach": Entry("attach:detach", "Archive a thread and release it for other daemons."),
    },
    "Daemon": {
        "status": Entry("status:status", "Say whether the daemon runs, and where."),
        "stop": Entry("status:stop", "Stop the daemon."),
        "service": Entry("service:service", "Run the daemon as a service of your user."),
        "doctor": Entry("doctor:doctor", "Examine the daemon and its machine, with advice."),
        "stats": Entry("stats:stats", "Show the daemon's settings, contents and activity."),
        "drain": Entry("drain:drain", "Empty this machine before it is removed."),
        "verify": Entry("verify:verify", "Read stored records back and report damage."),
        "compact": Entry("compact:compact", "Rewrite the data file without freed space."),
        "keys": Entry("keys:keys", "Make key files for the daemon."),
        "audit-proof": Entry("audit_proof:audit_proof", "Show that a thread continues a version that you know."),
        "audit-log": Entry("audit_log:audit_log", "Check the daemon's audit log."),
        "token": Entry("token:token", "Make, list and revoke tokens of callers."),
    },
    "Develop": {
        "conformance": Entry("conformance:conformance", "Test a client of any language against a scripted daemon."),
    },
    "Begin": {
        "demo": Entry("demo:demo", "Watch an agent continue after it is killed."),
        "completion": Entry("completion:completion", "Print the completion script for your shell."),
    },
}

# Commands of two words whose first word is a command, too. A file of that name can be given as ./langgraph.
LONGER: dict[tuple[str, ...], Entry] = {
    ("import", "langgraph"): Entry("import_langgraph:import_langgraph", "Import a LangGraph database."),
}


class Catalog(TyperGroup):
    """The group of all commands, each loaded at first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the help."""
        return [name for entries in SECTIONS.values() for name in entries]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; None if there is none of that name."""
        if cmd_name not in self.commands:
            entry = next((each[cmd_name] for each in SECTIONS.values() if cmd_name in each), None)
            if entry is None:
                return None
            self.commands[cmd_name] = load(cmd_name, entry)
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the arguments begin with, and the arguments after it."""
        entry = LONGER.get(tuple(args[:2]))
        if entry is None:
            return super().resolve_command(ctx, args)
        name = " ".join(args[:2])
        return name, load(name, entry), args[2:]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands by section, without loading any."""
        width = max(map(len, self.list_commands(ctx)))
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                # Padded, so that the columns of all sections stand below each other.
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in entries.items()])


def load(name: str, entry: Entry) -> Any:
    """Imports a command and makes it one of typer's."""
    module, _, attribute = entry.place.partition(":")
    found = getattr(importlib.import_module(f"stateward.cli.commands.{module}"), attribute)
    if isinstance(found, typer.Typer):
        command: Any = typer.main.get_command(found)
        command.name = name
        return command
    alone = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=CONTEXT
    )
    alone.command(name)(found)
    return typer.main.get_command(alone)
