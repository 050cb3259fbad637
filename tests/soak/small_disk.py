"""A disk that can be filled: a small tmpfs where one can be mounted, else a small map that is filled with a thread."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from stateward.errors import DiskFull, NotFound
from stateward.testing import Daemon

DISK_MIB = 256
MAP_MIB = 192
BALLAST_BYTES = 512 << 10


class SmallDisk:
    """`flags` are what the daemon has to be started with. Filled so that nothing, or almost nothing, is left."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(directory)]
        can_mount = shutil.which("mount") is not None
        self.is_mounted = can_mount and subprocess.run(command, check=False, capture_output=True).returncode == 0
        self.flags = {} if self.is_mounted else {"map_size": f"{MAP_MIB}MiB"}
        self._ballast = directory / "ballast"

    @property
    def what(self) -> str:
        """In a word."""
        return f"a tmpfs of {DISK_MIB} MiB" if self.is_mounted else f"a map of {MAP_MIB} MiB (nothing can be mounted)"

    def fill(self, daemon: Daemon, left_bytes: int) -> None:
        """Fills it."""
        if not self.is_mounted:
            self._fill_map(daemon)
            return
        with self._ballast.open("wb") as file:
            size = 16 << 20
            while size >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), file.tell(), size)
                    file.seek(size, os.SEEK_CUR)
                except OSError:
                    size //= 2
            file.truncate(max(file.tell() - left_bytes, 0))

    def free(self, daemon: Daemon) -> None:
        """Makes room again."""
        if self.is_mounted:
            self._ballast.unlink(missing_ok=True)
            return
        with daemon.client(namespace="ballast") as client, suppress(NotFound):
            client.thread("ballast").delete()

    @staticmethod
    def _fill_map(daemon: Daemon) -> None:
        with daemon.client(namespace="ballast") as client, suppress(DiskFull):
            for _ in range(MAP_MIB * 3):
                client.thread("ballast").append("ballast", os.urandom(BALLAST_BYTES))

    def close(self) -> None:
        """Takes it away."""
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.directory)], check=True)
            self.is_mounted = False
