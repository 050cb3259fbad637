"""The one list of what a reader of the pages cannot do in a test, each with its reason. All else is run as written."""

from __future__ import annotations

from dataclasses import dataclass

STAND_INS_BECAUSE = {
    "docker": "there is no container engine; `make image-test` builds and runs the image without one",
    "helm": "there is no cluster; tests/deploy renders the chart",
    "kubectl": "there is no cluster; tests/deploy renders the manifests and plays a pod's life",
    "make": "its tasks run these tests, or build for minutes; the task and its prerequisites must exist",
    "pip": "installs from a registry; tests/project/test_package_bare_pythons.py installs the packages of this tree",
    "python": "campaigns among the tests run for hours; they must have the options that a page gives them",
    "sudo": "changes the machine; what it names must be what the unit names",
    "sleep": "nothing is there to wait for",
}

# The pages' places and ports, as they are on the scratch machine. {port} is free.
PLACES = {
    "/tmp/": "{place}/tmp/",
    "/etc/stateward": "{place}/etc",
    "127.0.0.1:9464": "127.0.0.1:{port}",
    ":7443": ":{port}",
}

# These last until Ctrl-C, which comes after their first line, or after so many seconds.
LASTING = {
    "stateward watch booking-42": 2,
    "stateward-sidecar --metrics 127.0.0.1:9464": 30,
    "stateward-sidecar --traces http://127.0.0.1:4317": 30,
    "stateward run --on-signal ./agent.sh": 2,
}

# Pages that suppose a daemon which runs.
WITH_DAEMON = {"docs/frameworks.md", "docs/monitoring.md"}


@dataclass(frozen=True)
class Elsewhere:
    """Blocks that are not run by the reader. `begin`: of their first line; empty = all of this kind on the page.
    `test`: the file that checks them, which names the page."""

    page: str
    kind: str
    begin: str
    why: str
    test: str = ""


ELSEWHERE = [
    Elsewhere("deploy/README.md", "yaml", "", "a cluster takes it; here it is rendered",
              "tests/deploy/test_page_of_deploy.py"),
    Elsewhere("docs/stores.md", "sh", "export", "the store of a cloud is needed; a server of each kind stands for it",
              "tests/stores/test_store_variables.py"),
    Elsewhere("docs/stores.md", "json", "{", "a rule that a cloud takes; it is read as JSON",
              "tests/stores/test_store_variables.py"),
    Elsewhere("docs/keys.md", "shell", "stateward", "a service and a bucket are needed; stand-ins take the commands",
              "tests/keys/test_keys_page_untrue.py"),
    Elsewhere("docs/keys.md", "json", "{", "a rule that a cloud takes; it is read as JSON",
              "tests/keys/test_keys_page_untrue.py"),
    Elsewhere("docs/guide.md", "toml", "[[principal]]", "a file of principals; it is read as the daemon reads it",
              "tests/start/test_access_grants.py"),
    Elsewhere("docs/operations.md", "toml", "# in", "a file of principals; it is read as the daemon reads it",
              "tests/start/test_access_sockets.py"),
    Elsewhere("docs/operations.md", "toml", "[[issuer]]", "a file of principals; it is read as the daemon reads it",
              "tests/start/test_access_bearers.py"),
    Elsewhere("docs/operations.md", "toml", "[[principal]]", "a file of principals; it is read as the daemon reads it",
              "tests/start/test_quotas_of_principals.py"),
    Elsewhere("docs/operations.md", "text", "agents × saves per day", "a formula"),
    Elsewhere("docs/protocol.md", "textproto", "", "messages, which are sent to a daemon",
              "tests/conformance/test_protocol_untrue_page.py"),
    Elsewhere("docs/protocol.md", "python", "", "code that a client of the tests is made of",
              "tests/conformance/raw_client.py"),
    Elsewhere("docs/protocol.md", "text", "4:slot1:n0", "bytes, which are compared",
              "tests/conformance/test_conformance_python_client.py"),
    Elsewhere("docs/protocol.md", "text", "0a0e0a01", "bytes, which are compared",
              "tests/conformance/test_protocol_untrue_page.py"),
    Elsewhere("docs/frameworks.md", "ts", "", "needs Node and npm's packages",
              "packages/langgraph-js/tests/readme.test.ts"),
    Elsewhere("packages/langgraph-js/README.md", "js", "", "needs Node and npm's packages",
              "packages/langgraph-js/tests/readme.test.ts"),
    *(Elsewhere("proto/README.md", "shell", begin, "needs a plugin of protoc, which is run if it is there",
                "tests/languages/test_languages_generating.py")
      for begin in ("M=github.com", "OWN=example.com", "protoc -I proto --java_out", "protoc -I proto --es_out",
                    "protoc -I proto --prost_out", "protoc -I proto --csharp_out", "protoc -I proto --cpp_out")),
    Elsewhere("proto/README.md", "typescript", "import { connect }", "needs Connect from npm; its form is checked"),
    Elsewhere("examples/agent.md", "text", "build/examples/go/agent PHASE", "the form of the commands"),
    Elsewhere("sidecar/DESIGN.md", "shell", "__main__ → app", "a drawing; `make layers` checks the imports"),
    Elsewhere("sidecar/FORMAT.md", "shell", "", "drawings of bytes; tests/golden has the bytes"),
    Elsewhere("tests/mutants/README.md", "shell", "Promise: what stops", "the form of a file"),
]  # fmt: skip


# What a block needs that a test does not build. Without it the block is skipped, with this reason.
NEEDED = {"build/examples/go/agent": "`make examples` builds it"}


@dataclass(frozen=True)
class Refused:
    """A command that ends with another exit code than 0 on a scratch machine."""

    page: str
    begin: str
    code: int
    why: str


REFUSED = [
    Refused("examples/README.md", "timeout --signal KILL", 137, "it is a kill"),
    Refused("docs/tutorial.md", "timeout --signal KILL", 137, "it is a kill"),
    Refused("docs/frameworks.md", "stateward import langgraph postgresql://user@host/db", 1, "there is no such host"),
]


# What the blocks of a page must have printed in the end, and how often.
SAID = {"docs/tutorial.md": {"looking at Lima": 1, "asked, and ending": 1, "paying\n": 1, "done: {'receipt'": 1}}


@dataclass(frozen=True)
class Before:
    """What has happened before somebody types the command `line`."""

    page: str
    line: str
    happens: str


BEFORE = [
    Before("docs/operations.md", "stateward archive status",
           "python -c 'from stateward import Client; "
           "Client().thread(\"booking-42\").append(\"messages\", \"a room\", durability=\"archived\")'"),
    Before("docs/operations.md", "stateward import all.jsonl.gz", "stateward rm booking-42 --yes"),
]  # fmt: skip
