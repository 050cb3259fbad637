"""A hook of mkdocs: pages of the site that lie elsewhere in the repository, links between them, version and source.

Links are written for people who read the repository. In the site, a link to a page leads to the page, and a link to
anything else leads to the repository, or is its name until the repository is decided. Each page ends with the name of
its source, which is a link for editing once the repository is decided (`[project.urls]` in pyproject.toml).
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Where a page is in the repository, and in the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "client/stateward/cli/README.md": "design/cli.md",
    "client/stateward/opening/README.md": "design/opening.md",
    "deploy/README.md": "deploy.md",
    "examples/README.md": "examples.md",
    "packages/langgraph-js/README.md": "langgraph-js.md",
    "proto/README.md": "contract.md",
    "sidecar/DESIGN.md": "design.md",
    "sidecar/FORMAT.md": "format.md",
    "sidecar/stateward_sidecar/archive/README.md": "design/archive.md",
    "sidecar/stateward_sidecar/archive/fleet/README.md": "design/fleet.md",
    "sidecar/stateward_sidecar/archive/own/README.md": "design/own.md",
    "sidecar/stateward_sidecar/archive/ship/README.md": "design/ship.md",
    "sidecar/stateward_sidecar/bucket/README.md": "design/bucket.md",
    "sidecar/stateward_sidecar/doctor/README.md": "design/doctor.md",
    "sidecar/stateward_sidecar/metrics/README.md": "design/metrics.md",
    "sidecar/stateward_sidecar/service/README.md": "design/service.md",
    "sidecar/stateward_sidecar/service/admission/README.md": "design/admission.md",
    "sidecar/stateward_sidecar/storage/README.md": "design/storage.md",
    "sidecar/stateward_sidecar/store/README.md": "design/store.md",
    "sidecar/stateward_sidecar/store/blobs/README.md": "design/blobs.md",
    "sidecar/stateward_sidecar/store/clean/README.md": "design/clean.md",
    "sidecar/stateward_sidecar/store/copies/README.md": "design/copies.md",
    "sidecar/stateward_sidecar/store/items/README.md": "design/items.md",
    "sidecar/stateward_sidecar/store/journal/README.md": "design/journal.md",
    "sidecar/stateward_sidecar/store/read/README.md": "design/read.md",
    "sidecar/stateward_sidecar/store/versions/README.md": "design/versions.md",
    "tests/bench/bench.svg": "bench.svg",
    "tests/histories/README.md": "histories.md",
    "tests/soak/README.md": "soak.md",
}
_SOURCES = {there: here for here, there in PAGES.items()}
_CODE = re.compile(r"^```.*?^```$|^ {4}.*?$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Puts the version beside the name, and the repository into the head, if there is one."""
    (version,) = re.findall(r'^VERSION = "(.+)"$', (ROOT / "client/stateward/_version.py").read_text(), re.MULTILINE)
    config.site_name = f"Stateward {version}"
    if repository := find_repository():
        config.repo_url, config.repo_name = repository, "Repository"
    return config


def find_repository() -> str | None:
    """The repository's URL; None = not decided."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    return None if ".invalid" in urls["Repository"] else str(urls["Repository"]).rstrip("/")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that lie elsewhere."""
    for here, there in PAGES.items():
        files.append(File.generated(config, there, abs_src_path=str(ROOT / here)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Makes the links of a page lead to pages of the site."""
    source = _SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    repository = find_repository()
    return rewrite(markdown, source, page.file.src_uri, repository) + sign(source, repository)


def sign(source: str, repository: str | None) -> str:
    """The last line of a page: where its text is, and a link for editing it."""
    where = f'Edit <a href="{repository}/edit/main/{source}">{source}</a>' if repository else f"Source: {source}"
    return f'\n\n<p class="source">{where}</p>\n'


def rewrite(markdown: str, source: str, place: str, repository: str | None = None) -> str:
    """Returns a page's text with its links as the site needs them. Code stays as it is."""

    def link(found: re.Match[str]) -> str:
        path, anchor = found["path"], found["anchor"] or ""
        if not path or "://" in path or path.startswith("mailto:"):
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        where = PAGES.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        if target == "deploy":
            where = "deploy.md"
        elif target == "proto":
            where = "contract.md"
        if where is None:
            return f"[{found['text']}]({repository}/blob/main/{target}{anchor})" if repository else found["text"]
        relative = posixpath.relpath(where, posixpath.dirname(place) or ".")
        return f"{found['image']}[{found['text']}]({relative}{anchor})"

    parts, end = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(link, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(link, markdown[end:])])
