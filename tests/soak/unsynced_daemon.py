"""A daemon that answers before anything is synced: what the power-loss model must find out.

python -m tests.soak.unsynced_daemon ARGUMENTS OF THE DAEMON
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import lmdb


def main() -> None:
    """Opens LMDB without syncs and becomes the daemon."""
    from stateward_sidecar.__main__ import main as run

    lmdb.open = functools.partial(lmdb.open, sync=False)
    run()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
