"""The danger: somebody types what a page says, and it does not work."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from tests.bucket.weed import WeedMissing, free_ports, make_s3_bucket, running_weed, s3_environment
from tests.pages import belongings, stand_ins
from tests.pages.blocks import REPOSITORY, SHELL, Block, blocks, pages
from tests.pages.elsewhere import (
    BEFORE,
    ELSEWHERE,
    LASTING,
    NEEDED,
    PLACES,
    REFUSED,
    SAID,
    STAND_INS_BECAUSE,
    WITH_DAEMON,
    Elsewhere,
)
from tests.pages.reader import Failed, Reader

from stateward.testing import run_daemon

PAGES = pages()
INSTALLED = {"docs/monitoring.md", "docs/protocol.md"}
"""Pages whose few commands are the installed program itself."""


def elsewhere(block: Block) -> Elsewhere | None:
    """Why the reader does not run a block; None = it does."""
    for each in ELSEWHERE:
        if (each.page, each.kind) == (block.page, block.kind) and block.begin.startswith(each.begin):
            return each
    return None


def read_yaml(text: str) -> None:
    """Reads YAML; a configuration of Prometheus also with its own program, if that is there."""
    found = yaml.safe_load(text)
    assert found
    program = shutil.which("promtool", path=f"{REPOSITORY}/build/promtool/usr/bin:{os.environ['PATH']}")
    if "scrape_configs" in found and program:
        with tempfile.TemporaryDirectory() as name:
            shutil.copy(REPOSITORY / "deploy/prometheus/alerts.yaml", name)
            (Path(name) / "prometheus.yaml").write_text(text)
            command = [program, "check", "config", f"{name}/prometheus.yaml"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def read_xml(text: str) -> None:
    include = ET.fromstring(text).get("Include")
    assert include
    assert list(REPOSITORY.glob(include))


READ: dict[str, Callable[[str], None]] = {"yaml": read_yaml, "xml": read_xml}


@contextmanager
def machine(page: str) -> Iterator[Reader]:
    """A scratch machine, with a daemon and a bucket if the page supposes them."""
    text = "".join(block.text for block in blocks(page))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "STATEWARD_", "XDG_"))}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp")))
        if page in WITH_DAEMON:
            kept["STATEWARD_TARGET"] = stack.enter_context(run_daemon()).target
        if "s3://my-bucket" in text:
            (place / "weed").mkdir()
            try:
                url = stack.enter_context(running_weed(place / "weed"))
            except WeedMissing as error:
                pytest.skip(str(error))
            make_s3_bucket(url, "my-bucket")
            kept |= s3_environment(url)
        reader = Reader(place, kept, installed=page in INSTALLED)
        stack.callback(reader.close)
        stand_ins.install(place / "bin")
        belongings.lay_out(reader.clone, text)
        yield reader


def as_on(place: Path, text: str) -> str:
    for written, real in PLACES.items():
        text = text.replace(written, real.format(place=place, port=PORT))
    return text


(PORT,) = free_ports(1)


def script(block: Block) -> str:
    """The commands of a block, with what happens before them, and with Ctrl-C for those that last."""
    lines = []
    for line in block.text.splitlines():
        lines += [each.happens for each in BEFORE if each.page == block.page and each.line == line]
        lasts = [seconds for begin, seconds in LASTING.items() if line.startswith(begin)]
        lines.append(f"lasting {lasts[0]} {line}" if lasts else line)
    return "\n".join(lines) + "\n"


def run(reader: Reader, block: Block) -> None:
    """Runs a block, or reads it as what it is. Raises Failed."""
    name, place = f"{block.page}:{block.line}", reader.clone.parent
    if block.kind == "python":
        return reader.run_python(name, as_on(place, block.text))
    if block.kind != SHELL:
        return READ[block.kind](block.text)
    failures = reader.run_shell(name, as_on(place, script(block)))
    foreseen = [each for each in REFUSED if each.page == block.page and each.begin in block.text]
    for code, command in failures:
        if not any(code == each.code and command.startswith(each.begin) for each in foreseen):
            raise Failed(f"{block}\n{command}: exit code {code}\n{reader.said()}")
    if len(failures) < len(foreseen):
        raise Failed(f"{block} ended well, unlike {foreseen}")
    return None


@pytest.mark.slow
@pytest.mark.timeout(900)  # the guide has some forty commands
@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_as_written(page: str) -> None:
    """A reader who types one block after the other on a new machine meets no error."""
    missing = set[str]()
    if all(map(elsewhere, blocks(page))):
        return  # the page has nothing to type
    with machine(page) as reader:
        for block in blocks(page):
            needed = {name: why for name, why in NEEDED.items() if name in block.text}
            lacks = {f"{name}: {why}" for name, why in needed.items() if not (REPOSITORY / name).exists()}
            if not lacks and not elsewhere(block):
                run(reader, block)
            missing |= lacks
        counts = {text: reader.said(whole=True).count(text) for text in SAID.get(page, ())}
        assert counts == SAID.get(page, {})
    if missing:
        pytest.skip(f"all but what needs {', '.join(missing)}")


def test_no_block_is_unknown() -> None:
    """Each block is run, read as what it is, or stands in the list."""
    known = {SHELL, "python", *READ}
    every = [block for page in PAGES for block in blocks(page)]
    assert [str(block) for block in every if block.kind not in known and not elsewhere(block)] == []
    assert len(every) > 100


def test_the_list_is_true() -> None:
    """Each entry of the list is about a block that exists, and its test exists and names the page."""
    for entry in ELSEWHERE:
        found = [each for each in blocks(entry.page) if each.kind == entry.kind and each.begin.startswith(entry.begin)]
        assert found, entry
        if entry.test:
            assert Path(entry.page).name in (REPOSITORY / entry.test).read_text(), entry
    lines = {(page, line) for page in PAGES for block in blocks(page) for line in block.text.splitlines()}
    assert {(each.page, each.line) for each in BEFORE} <= lines
    for page, begin in [(each.page, each.begin) for each in REFUSED] + [("", begin) for begin in LASTING]:
        assert any(line.startswith(begin) for at, line in lines if page in ("", at)), (page, begin)
    assert set(STAND_INS_BECAUSE) == set(stand_ins.STAND_INS) - {"python3"}


def test_a_typescript_block_has_its_form() -> None:
    """Node reads the block of proto/README.md, which needs packages that are not installed."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    (block,) = [each for each in blocks("proto/README.md") if each.kind == "typescript"]
    command = [node, "--input-type=module", "--check"]
    done = subprocess.run(command, input=block.text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("docker", "build -t stateward deploy"), ("docker", "run -v a:/data stateward"), ("docker", "run --bogus x"),
        ("kubectl", "apply -k deploy"), ("kubectl", "delete pod x"), ("make", "tests"), ("pip", "install state-ward"),
        ("kubectl", "kustomize nothing"), ("kubectl", "exec x -c stateward -- stateward-sidecar --healthy"),
        ("kubectl", "create secret generic other --from-literal=A=b"),
        ("helm", "install s deploy/helm/stateward --set imag=x"),
        ("docker", "compose -f nothing.yaml up"), ("sudo", "useradd --system --shell /usr/sbin/nologin agent"),
        ("sudo", "install -m 0600 nothing /etc"), ("pip", "install stateward[cloud]"),
        ("python", "-m tests.soak --hours 3"),
    ],
)  # fmt: skip
def test_a_stand_in_refuses_what_is_wrong(name: str, arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in takes only what the real program would take."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("PATH", f"/nowhere:{os.environ['PATH']}")
    with pytest.raises(stand_ins.Wrong):
        stand_ins.STAND_INS[name](arguments.split())
