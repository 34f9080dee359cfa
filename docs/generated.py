"""What MkDocs calls while it builds the site: it adds the generated pages, one for each kind of alert and each public package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs import kind_pages, reference_pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation."""
    added = {"Alerts": kind_pages.paths(), "Reference": reference_pages.paths()}
    for entry in config.nav or []:
        for title, pages in entry.items():
            pages.extend(added.get(title, []))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    for path, text in {**kind_pages.pages(), **reference_pages.pages()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  MkDocs passes them by name
    """Fill in the tables of kinds."""
    return markdown.replace("{{ kinds }}", kind_pages.table())
