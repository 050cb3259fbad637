"""The danger: a page that nobody finds, a link that leads nowhere, and a public name without a word about it."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

import stateward
from stateward._version import VERSION


@pytest.fixture(scope="module")
def site(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return place


def test_every_page_is_in_the_menu(repository: Path) -> None:
    """The menu of the site names each page of docs/, and no page twice."""
    text = (repository / "mkdocs.yml").read_text()
    menu = re.findall(r"^ +- .+: ([\w/-]+\.md)$", text[text.index("\nnav:") :], re.MULTILINE)
    pages = {str(path.relative_to(repository / "docs")) for path in (repository / "docs").rglob("*.md")}
    assert pages - set(menu) == set(), "add these pages to `nav` in mkdocs.yml"
    assert len(menu) == len(set(menu))


# Whoever uses Stateward needs none of these.
MAINTAINERS = ("design", "decisions/", "format.md", "rooms.md", "soak.md", "histories.md", "releasing.md", "conduct.md",
               "contributing.md")  # fmt: skip


def test_pages_of_maintainers_are_apart(repository: Path) -> None:
    """They have a part of the menu of their own, and it has no page for users."""
    menu = (repository / "mkdocs.yml").read_text().partition("\nnav:")[2]
    users, _, inside = menu.partition("  - For maintainers:\n")
    pages = [re.findall(r": ([\w/-]+\.md)$", part, re.MULTILINE) for part in (users, inside)]
    assert [page for page in pages[0] if page.startswith(MAINTAINERS)] == []
    assert [page for page in pages[1] if not page.startswith(MAINTAINERS)] == []
    assert pages[0][:5] == ["index.md", "install.md", "concepts.md", "tutorial.md", "which.md"]


@pytest.fixture(scope="module")
def hook(repository: Path) -> ModuleType:
    """docs/site.py."""
    spec = importlib.util.spec_from_file_location("site_hook", repository / "docs/site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_can_be_edited_once_the_repository_is_decided(hook: ModuleType) -> None:
    """Until then it names its source, and links to nothing that does not exist."""
    assert "href" not in hook.sign("docs/guide.md", None)
    assert 'href="https://host.example/s/edit/main/docs/guide.md"' in hook.sign("docs/guide.md", "https://host.example/s")
    text = "See [it](../examples/01_effects.py) and [Install](install.md)."
    assert hook.rewrite(text, "docs/guide.md", "guide.md") == "See it and [Install](install.md)."
    linked = hook.rewrite(text, "docs/guide.md", "guide.md", "https://host.example/s")
    assert "[it](https://host.example/s/blob/main/examples/01_effects.py)" in linked


class Links(HTMLParser):
    """What a page loads and links to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.ids.add(given.get("id") or "")
        wanted = {"a": "href", "img": "src", "link": "href", "script": "src"}.get(tag)
        if wanted and given.get(wanted):
            self.found.append(given[wanted] or "")


@pytest.mark.slow
def test_the_site_is_whole(site: Path) -> None:
    """It builds without a warning; each link within it has a target; a page loads nothing from another host."""
    pages = {path: Links(path) for path in site.rglob("*.html")}
    assert len(pages) > 15
    guide = (site / "guide/index.html").read_text()
    assert f"<title>Guide - Stateward {VERSION}</title>" in guide
    assert '<p class="source">' in guide
    assert re.search(r'<link rel="stylesheet" href="[./]*site\.css">', guide)
    assert "white-space: pre-wrap" in (site / "site.css").read_text(), "lines of code are cut off"
    for page, links in pages.items():
        if page.name == "404.html":
            continue
        for link in links.found:
            if link.startswith(("http:", "https:", "mailto:", "data:")):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{page.relative_to(site)}: {link}"
            if anchor and target in pages:
                assert anchor in pages[target].ids, f"{page.relative_to(site)}: {link}"
        loaded = re.findall(r'(?:<script[^>]+src|<img[^>]+src|<link[^>]+rel="stylesheet"[^>]+href)="(https?:[^"]+)"',
                            page.read_text())  # fmt: skip
        assert loaded == [], page


# Opens each page in a frame, as wide as a telephone and as a laptop, and names what is wider than its place.
PROBE = """<body><pre id="found"></pre><script>
const found = [], open = (frame, url) => new Promise(done => {
  frame.onload = () => setTimeout(done, 50); frame.src = url });
(async () => {
  for (const width of [400, 1280]) {
    const frame = document.createElement("iframe");
    frame.style.width = width + "px"; document.body.append(frame);
    for (const page of PAGES) {
      await open(frame, "/" + page);
      const root = frame.contentDocument;
      if (root.documentElement.scrollWidth > width + 1) found.push(`${width} ${page} is wider than the window`);
      for (const each of root.querySelectorAll(".md-content pre, .md-content pre code"))
        if (each.clientWidth && each.scrollWidth > each.clientWidth + 1)
          found.push(`${width} ${page}: ${each.innerText.slice(0, 60)}`);
      for (const each of root.querySelectorAll(".md-content img"))
        if (each.getBoundingClientRect().right > width + 1) found.push(`${width} ${page}: ${each.src}`);
    }
    frame.remove();
  }
  document.getElementById("found").textContent = ["opened", ...found].join("\\n");
})();
</script>"""


@pytest.mark.slow
@pytest.mark.timeout(300)  # it opens all pages twice
def test_no_line_is_cut_off(site: Path, tmp_path: Path) -> None:
    """In a browser, no block of code, picture or page is wider than its place, at 400 and at 1,280 pixels."""
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed")
    pages = sorted(str(path.parent.relative_to(site)) + "/" for path in site.rglob("index.html"))
    (site / "probe.html").write_text(PROBE.replace("PAGES", json.dumps(pages)))
    handler = functools.partial(QuietHandler, directory=str(site))
    try:
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
            command += ["--window-size=1400,900", "--virtual-time-budget=120000", "--dump-dom"]
            url = f"http://127.0.0.1:{server.server_port}/probe.html"
            done = subprocess.run([*command, url], capture_output=True, text=True, check=False)
            server.shutdown()
    finally:
        (site / "probe.html").unlink()
    found = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-1000:]
    assert found[0].splitlines() == ["opened"]


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.slow
def test_every_public_name_is_on_a_page(site: Path) -> None:
    """Each name of `stateward` is documented in the part about Python."""
    pages = [Links(path) for path in (site / "api").rglob("*.html")]
    documented = {name.rpartition(".")[2] for page in pages for name in page.ids if name.startswith("stateward.")}
    assert {name for name in dir(stateward) if not name.startswith("_")} - documented == set()
    text = re.sub(r"<[^>]+>", "", (site / "api/client/index.html").read_text())
    assert re.search(r"\bClient\(\s+target: str \| None = None,\s+\*,\s+namespace: str = ", text), "no signature"
    adapters = ("agent_framework", "openai_agents", "pydantic_ai", "strands", "adk", "langgraph")
    assert {f"stateward.{name}" for name in adapters} - {name for page in pages for name in page.ids} == set()
