"""Workloads of somebody else, each with something that a sidecar could break. All mount the socket."""

from __future__ import annotations

from typing import Any

import yaml

TEMPLATE = """
apiVersion: {version}
kind: {kind}
metadata: {{ name: {name}, labels: {{ stateward: sidecar }} }}
spec:
  {more}
  template:
    metadata: {{ labels: {{ app: theirs }}, annotations: {{ prometheus.io/scrape: "true" }} }}
    spec:
"""
SELECTOR = "selector: { matchLabels: { app: theirs } }"
KINDS = {
    "Deployment": ("apps/v1", SELECTOR),
    "DaemonSet": ("apps/v1", SELECTOR),
    "StatefulSet": ("apps/v1", f"serviceName: theirs\n  {SELECTOR}"),
    "Job": ("batch/v1", "backoffLimit: 1"),
}
MOUNT = "volumeMounts: [{ name: stateward-socket, mountPath: /run/stateward }]"
PODS = {
    "says nothing": f"containers: [{{ name: web, image: web, {MOUNT} }}]",
    "another user": f"""
securityContext: {{ runAsUser: 1000, runAsGroup: 1000, supplementalGroups: [7] }}
containers: [{{ name: web, image: web, {MOUNT} }}]""",
    "root": f"containers: [{{ name: web, image: web, securityContext: {{ runAsUser: 0 }}, {MOUNT} }}]",
    "its own service account": f"""
serviceAccountName: theirs
automountServiceAccountToken: true
terminationGracePeriodSeconds: 600
containers: [{{ name: web, image: web, {MOUNT} }}]""",
    "an HTTP port": f"""
containers:
  - name: web
    image: web
    ports: [{{ name: http, containerPort: 8080 }}, {{ name: metrics, containerPort: 9090 }}]
    readinessProbe: {{ httpGet: {{ path: /ready, port: http }} }}
    livenessProbe: {{ httpGet: {{ path: /live, port: 8080 }} }}
    lifecycle: {{ preStop: {{ sleep: {{ seconds: 5 }} }} }}
    {MOUNT}""",
    "init containers": f"""
initContainers:
  - {{ name: migrate, image: web, command: [migrate], volumeMounts: [{{ name: work, mountPath: /work }}] }}
  - {{ name: proxy, image: proxy, restartPolicy: Always, ports: [{{ name: proxy, containerPort: 15090 }}] }}
containers: [{{ name: web, image: web, {MOUNT} }}]
volumes: [{{ name: work, emptyDir: {{}} }}]""",
    "one namespace of processes": f"""
shareProcessNamespace: true
containers: [{{ name: web, image: web, {MOUNT} }}, {{ name: tail, image: tail }}]""",
    "volumes of its own": """
containers:
  - name: web
    image: web
    env: [{ name: STATEWARD_TARGET, value: "unix:///run/stateward/stateward.sock" }]
    volumeMounts:
      - { name: data, mountPath: /data }
      - { name: key, mountPath: /etc/stateward }
      - { name: stateward-socket, mountPath: /run/stateward }
volumes:
  - { name: data, persistentVolumeClaim: { claimName: theirs } }
  - { name: key, secret: { secretName: other } }""",
    "its own group of volumes": f"""
securityContext: {{ fsGroup: 2000, fsGroupChangePolicy: Always, runAsNonRoot: true, runAsUser: 2000 }}
containers: [{{ name: web, image: web, {MOUNT} }}]""",
    "the host's network": f"""
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
containers: [{{ name: web, image: web, ports: [{{ containerPort: 80 }}], {MOUNT} }}]""",
}

# Each pod in a Deployment, and one pod in each kind.
EACH = [
    *((name, "Deployment") for name in PODS),
    *(("init containers", kind) for kind in KINDS if kind != "Deployment"),
]


def workload_of(pod: str, kind: str = "Deployment") -> dict[str, Any]:
    """A workload whose pod is that of the table. No two have the same name."""
    version, more = KINDS[kind]
    name = f"{pod} {kind}".lower().replace(" ", "-").replace("'", "")
    head = TEMPLATE.format(version=version, kind=kind, more=more, name=name)
    made: dict[str, Any] = yaml.safe_load(head + _indented(PODS[pod]))
    if kind == "Job":
        made["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    return made


def _indented(text: str) -> str:
    return "\n".join(f"      {line}" for line in text.strip().splitlines()) + "\n"
