"""Lists the parts of the image in CycloneDX (a software bill of materials), from its pinned requirements.

    python deploy/sbom.py [--check]

Writes `deploy/image/stateward.cdx.json`, which lies in the image and beside the packages of a release, and a list of
what each service for keys adds to an image that has it (`SERVICES` in the Dockerfile). `--check` says whether the files
are up to date. The list has a line for each part, so that a difference can be read. It has no part that
Linux does not need, and nothing of the day or the machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
IMAGE = ROOT / "deploy/image"
LISTS = {
    "requirements.txt": "stateward.cdx.json",
    "aws-requirements.txt": "aws.cdx.json",
    "vault-requirements.txt": "vault.cdx.json",
}
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}


def make(requirements: str) -> str:
    """Returns the list of what these requirements have."""
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", str(IMAGE / requirements), "--output-reproducible"]
    command += ["--pyproject", str(ROOT / "pyproject.toml")]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}  # who needs whom does not stand in the requirements
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    bill: dict[str, Any] = json.loads(done.stdout)
    bill["components"] = [part for part in map(_part, bill["components"]) if part is not None]
    (version,) = re.findall(r'^VERSION = "(.+)"$', (ROOT / "client/stateward/_version.py").read_text(), re.MULTILINE)
    whole = bill["metadata"]["component"]
    whole |= {"version": version, "bom-ref": "stateward"}
    whole.pop("externalReferences", None)
    bill["metadata"] = {"component": whole}
    bill["dependencies"] = [{"ref": "stateward", "dependsOn": [part["bom-ref"] for part in bill["components"]]}]
    head = {name: bill[name] for name in ("$schema", "bomFormat", "specVersion", "version", "metadata", "dependencies")}
    lines = ",\n".join(json.dumps(part) for part in bill["components"])
    return f'{json.dumps(head)[:-1]},\n"components": [\n{lines}\n]}}\n'


def _part(found: dict[str, Any]) -> dict[str, Any] | None:
    """One package with the hashes of its files; None if Linux does not need it."""
    requirement = Requirement(found["description"].partition(": ")[2].partition("--hash")[0])
    if requirement.marker is not None and not requirement.marker.evaluate({**LINUX, "extra": ""}):
        return None
    purl = found["purl"]
    hashes = [each for reference in found["externalReferences"] for each in reference["hashes"]]
    return {
        "type": found["type"], "bom-ref": purl, "name": found["name"], "version": found["version"], "purl": purl,
        # From whichever index the packages come.
        "externalReferences": [{"type": "distribution", "url": purl, "hashes": hashes}],
    }  # fmt: skip


def main() -> int:
    """Writes the lists, or checks them."""
    code = 0
    for requirements, name in LISTS.items():
        made, target = make(requirements), IMAGE / name
        if "--check" not in sys.argv[1:]:
            target.write_text(made)
        elif not target.exists() or target.read_text() != made:
            print(f"deploy/image/{name} is out of date: run `make sbom`", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
