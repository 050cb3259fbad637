"""What the API server refuses in a pod, if a sidecar can cause it. For machines without its code (programs.py)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
SECURITY_OF_PODS = {"fsGroup", "fsGroupChangePolicy", "supplementalGroups", "sysctls", "supplementalGroupsPolicy"}


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers of a pod."""
    return [*spec.get("initContainers", ()), *spec["containers"]]


def faults(spec: dict[str, Any], claims: Iterable[str] = ()) -> list[str]:
    """Why the API server refuses a pod's ``spec``; ``claims`` are the names of a StatefulSet's claims."""
    volumes = {item["name"]: item for item in spec.get("volumes", ())}
    return [
        *_twice("volume", (item["name"] for item in spec.get("volumes", ()))),
        *_twice("container", (item["name"] for item in containers(spec))),
        *(f"volume {name} has {len(item) - 1} sources" for name, item in volumes.items() if len(item) > 2),
        *(fault for item in containers(spec) for fault in _of_container(item, {*volumes, *claims})),
        *(
            f"the container {item['name']} ends, and has a probe or a hook"
            for item in spec.get("initContainers", ())
            if item.get("restartPolicy") != "Always"
            and item.keys() & {"startupProbe", "readinessProbe", "livenessProbe", "lifecycle"}
        ),
    ]


def _of_container(item: dict[str, Any], volumes: set[str]) -> Iterator[str]:
    name = item["name"]
    if not NAME.fullmatch(name):
        yield f"{name} is no name"
    mounts = item.get("volumeMounts", ())
    missing = [mount["name"] for mount in mounts if mount["name"] not in volumes]
    yield from (f"{name} mounts {volume}, which is no volume" for volume in missing)
    yield from _twice(f"mount of {name} at", (mount["mountPath"] for mount in mounts))
    ports = item.get("ports", ())
    names = [port["name"] for port in ports if "name" in port]
    yield from _twice(f"port of {name}", names)
    yield from (f"{port} is no name of a port" for port in names if not PORT_NAME.fullmatch(port))
    context = item.get("securityContext", {})
    yield from (f"{name} has {field}, which belongs to the pod" for field in sorted(SECURITY_OF_PODS & context.keys()))
    if context.get("runAsNonRoot") and context.get("runAsUser") == 0:
        yield f"{name} must not be root, and is"


def _twice(what: str, names: Iterable[str]) -> list[str]:
    return [f"{what} {name} is there {count} times" for name, count in Counter(names).items() if count > 1]
