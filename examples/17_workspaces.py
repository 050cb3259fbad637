"""A coding agent whose files and talk are kept together: it breaks its files, and gets them back.

    python examples/17_workspaces.py

An agent writes a small program with a tool, and tests it. Then one of its shell commands goes wrong: it deletes a file,
empties another, and leaves many new ones. No tool saw these changes. The files go back to the last version that
worked, and the talk stays, so the agent knows what it must not do again. The undo of that brings even the broken files
back. The same from a shell:

    stateward workspace plan coder /app --at 2
    stateward workspace restore coder /app --at 2
    stateward workspace undo coder /app
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from stateward import Client, Thread
from stateward.testing import run_daemon

PROGRAM = "from parts import double\n\nprint(double(21))\n"
PARTS = "def double(number):\n    return 2 * number\n"
BAD_COMMAND = "rm parts.py; : > main.py; i=0; while [ $i -lt 200 ]; do echo junk > out-$i.log; i=$((i+1)); done"


def say(thread: Thread, root: Path, role: str, content: str) -> int:
    """Adds to the talk, and saves it with the files as they are: one version."""
    state = thread.hydrate()
    state.logs["messages"].append({"role": role, "content": content})
    return thread.save(state, workspace=thread.workspace(root).snapshot()).version


def works(root: Path) -> bool:
    """Runs the program of the agent."""
    done = subprocess.run([sys.executable, "-B", "main.py"], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout == "42\n"


def main() -> int:
    """Lets the agent work, breaks its files, and goes back. Returns 0 if everything is as expected."""
    with tempfile.TemporaryDirectory() as place, run_daemon() as daemon, Client(daemon.target) as client:
        root, thread = Path(place) / "app", client.thread("coder")
        root.mkdir()
        (root / "secret.env").write_text("not of the agent")
        (root / ".env").write_text("KEY=1")  # rules leave it out: no version has it, and no restore touches it
        say(thread, root, "user", "Write a program that prints 42.")
        (root / "main.py").write_text(PROGRAM)
        (root / "parts.py").write_text(PARTS)
        good = say(thread, root, "assistant", "It prints 42.")
        print(f"version {good}: the program works: {works(root)}")

        subprocess.run(["/bin/sh", "-c", BAD_COMMAND], cwd=root, check=True)
        bad = say(thread, root, "tool", "rm: I deleted the wrong file.")
        print(f"version {bad}: a shell command ran; the program works: {works(root)}")

        plan = thread.workspace(root).plan(good)
        actions = [each.action for each in plan.changes]
        counts = {action: actions.count(action) for action in ("make", "replace", "delete")}
        print("going back would", ", ".join(f"{action} {count}" for action, count in counts.items()))
        undo = plan.apply()  # mode="both" would take the talk back, too
        talk = [each["content"] for each in thread.hydrate().logs["messages"]]
        is_back = works(root) and len(talk) == 3 and counts == {"make": 1, "replace": 1, "delete": 200}
        print(f"the files are those of version {good}: {works(root)}; the agent still knows: {talk[-1]}")

        undo.apply()
        is_undone = len(list(root.glob("out-*.log"))) == 200 and not works(root)
        thread.workspace(root).plan_undo().apply()
        is_kept = (root / ".env").read_text() == "KEY=1"
        print(f"undone and done again: {is_undone and works(root)}; .env was never touched: {is_kept}")
        return 0 if is_back and is_undone and works(root) and is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
