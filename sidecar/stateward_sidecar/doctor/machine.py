"""What the system grants the process: files, memory, processor."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stateward.v1.admin_service_pb2 import Diagnosis
from stateward_sidecar.doctor.diagnosis import failed, fine, warning
from stateward_sidecar.settings import Settings
from stateward_sidecar.store.thread.cache import control_groups, memory_limit_bytes

MIB = 1 << 20
FILES_MIN = 1024
MEMORY_MIN_BYTES = 192 * MIB
THROTTLED_SHARE = 0.01


def check_limits(settings: Settings) -> list[Diagnosis]:
    """Looks at the limits of the process, as ``ulimit`` shows them."""
    found = list[Diagnosis]()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < FILES_MIN:
        found.append(
            warning(
                "limits",
                f"the process may have {files} files open; each connection, blob and request is one",
                f"Give it at least {FILES_MIN}: ulimit -n, LimitNOFILE= in systemd.",
                open_files=files,
            )
        )
    for kind, name, option in (
        (resource.RLIMIT_FSIZE, "files", "ulimit -f unlimited"),
        (resource.RLIMIT_AS, "address space", "ulimit -v unlimited"),
    ):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY and limit < settings.map_bytes:
            found.append(
                failed(
                    "limits",
                    f"the {name} of the process may have {limit} bytes, less than the map of {settings.map_bytes}",
                    f"Run `{option}` before the daemon starts, or give it a smaller --map-size.",
                    limit_bytes=limit,
                    map_bytes=settings.map_bytes,
                )
            )
    return found or [fine("limits", f"{'any number of' if files == resource.RLIM_INFINITY else files} open files")]


def check_memory(settings: Settings, groups: Sequence[Path] | None = None) -> list[Diagnosis]:
    """Looks at the memory limit, and whether the control group was stopped, or processes of it killed, for lack of any.

    ``groups``: see ``control_groups``; None = those of this process.
    """
    groups = groups or control_groups()
    limit = memory_limit_bytes(groups)
    used = settings.memory_bytes or limit
    found = list[Diagnosis]()
    if used > 2 * limit:  # ``limit`` is at most half of the machine's memory
        found.append(
            failed(
                "memory",
                f"--memory-limit allows {used // MIB} MiB, and the system grants {limit // MIB} MiB",
                "The kernel will kill it under load. Give a smaller --memory-limit, or the container more memory.",
                limit_bytes=limit,
                setting_bytes=used,
            )
        )
    elif used < MEMORY_MIN_BYTES:
        found.append(
            warning(
                "memory",
                f"{used // MIB} MiB of memory are little: large states and answers wait for each other",
                f"Give the container at least {MEMORY_MIN_BYTES // MIB} MiB, or three times the largest state.",
                limit_bytes=used,
            )
        )
    events, processor = _facts(groups, "memory.events"), _facts(groups, "cpu.stat")
    if kills := events.get("oom_kill", 0):
        found.append(
            warning(
                "memory",
                f"the kernel has killed {kills} process{'es' * (kills > 1)} of this control group for lack of memory",
                "Give the container more memory, or the daemon a smaller --memory-limit.",
                oom_kills=kills,
            )
        )
    periods, throttled = processor.get("nr_periods", 0), processor.get("nr_throttled", 0)
    if periods and throttled / periods > THROTTLED_SHARE:
        found.append(
            warning(
                "limits",
                f"the processor was withheld in {100 * throttled / periods:.0f} % of all periods",
                "Remove the CPU limit of the container: each stop adds to the time of a save.",
                throttled=throttled,
            )
        )
    return found or [fine("memory", f"the daemon may use {used // MIB} MiB", limit_bytes=used)]


def _facts(groups: Sequence[Path], name: str) -> dict[str, int]:
    """Reads the innermost file of this name, which has lines ``name number``; empty if there is none."""
    lines: list[str] = []
    for group in groups:
        with suppress(OSError):
            lines = (group / name).read_text().splitlines()
            break
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}
