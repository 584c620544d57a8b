"""Hooks of mkdocs: pages that lie outside of docs/, the reference of options, and links.

Links are written for readers of the repository. On the site, a link to a file that is a page leads
to that page, one to conf/ to the page about these options, and a link to any other file of the
repository leads to the file on GitHub.
"""

import logging
import posixpath
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # noqa: TID251 - mkdocs loads this file by its path

from docs import reference  # noqa: E402 - needs the path

ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages by their file in the repository, where that is not docs/PAGE."""

_SOURCES = {page: source for source, page in ELSEWHERE.items()}
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_NAMED_BLOCK = re.compile(r"^```(\w+) ([\w./]+)$", re.MULTILINE)
_log = logging.getLogger("mkdocs.hooks.flfast")  # its warnings fail a strict build


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the pages of options in the navigation."""
    nav: Any = config.nav
    section = next(entry["Reference"] for entry in nav if "Reference" in entry)
    section += [{"Options": list(reference.pages())}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs/."""
    pages = {page: (ROOT / source).read_text("utf-8") for source, page in ELSEWHERE.items()}
    for uri, text in {**pages, **reference.pages()}.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Leads links to pages of the site, and gives blocks with a file name a title."""
    uri = page.file.src_uri
    source = _SOURCES.get(uri, f"docs/{uri}")

    def moved(found: re.Match[str]) -> str:
        return found[1] + site_link(found[2], source, uri, str(config.repo_url)) + found[3]

    return _NAMED_BLOCK.sub(r'```\1 title="\2"', _LINK.sub(moved, markdown))


def site_link(link: str, source: str, uri: str, repository: str) -> str:
    """Where a link leads on the site.

    Args:
        link: as it is written.
        source: the file that it is written in, from the root of the repository.
        uri: the page that is made of this file, from the root of the site.
        repository: address of the repository.
    """
    path, anchor = urldefrag(link)
    if not path or ":" in path:
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if made := reference.page_of(path):
        return posixpath.relpath(made, posixpath.dirname(uri) or ".")
    if path in ELSEWHERE or path.startswith("docs/"):
        target = ELSEWHERE.get(path, path.removeprefix("docs/"))
        path = posixpath.relpath(target, posixpath.dirname(uri) or ".")
    else:
        if not (ROOT / path).exists():
            _log.warning("%s links to %s, which does not exist", source, link)
        path = f"{repository}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"
    return f"{path}#{anchor}" if anchor else path
