"""Puts a report together and writes it."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from flfast.output.report import (
    client_sections,
    cost_sections,
    model_sections,
    outcome_sections,
    setting_sections,
)
from flfast.output.report.content import Content
from flfast.output.report.drawn import Chart, drawn
from flfast.output.report.section import Section
from flfast.output.report.verdict import Verdict, num_tests, verdict, warning
from flfast.output.results.runs import RunRecord
from flfast.state.regular_file import replacing

log = logging.getLogger(__name__)

_FILES = Path(__file__).with_name("page_files")


def write_page(content: Content, path: Path) -> None:
    """Write a report as one HTML file that needs no network; an existing file is replaced.

    Raises:
        OSError: if it cannot be written.
    """
    save_page(render(content, path.parent), path)


def save_page(page: str, path: Path) -> None:
    """Write the text of a page; an existing file is replaced.

    Raises:
        OSError: if it cannot be written.
    """
    with replacing(path.parent) as place:
        (place / path.name).write_text(page, encoding="utf-8")


def report_or_warn(runs: Callable[[], Sequence[RunRecord]], path: Path) -> None:
    """Write the report of what `runs` reads; if that fails, the log has a warning."""
    try:
        write_page(Content(runs()), path)
    except Exception as error:  # noqa: BLE001 - the runs' own results are already there
        log.warning("%s was not written: %s: %s", path, type(error).__name__, error)


def render(content: Content, folder: Path = Path()) -> str:
    """The page as text; its links lead to run folders from `folder`."""
    return filled(
        title=_title(content),
        verdict=verdict(content),
        chart=outcome_sections.intervals(content),
        sections=_sections(content, folder),
        warning=warning(content),
        facts=_facts(content),
    )


def filled(
    *,
    title: str,
    verdict: Verdict,
    sections: Sequence[Section],
    facts: Mapping[str, Any],
    chart: Chart | None = None,
    warning: str = "",
) -> str:
    """The template of all pages, with these parts: one file that needs no network."""
    # Jinja takes as long to import as a report to write; commands that write none go without.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_FILES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = "report.js", "report.css"
    script, style = ((_FILES / name).read_text(encoding="utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = [
        (
            section,
            [*filter(None, map(drawn, section.charts))],
            [t for t in section.tables if t.rows],
        )
        for section in sections
    ]
    return environment.get_template("report.html").render(
        title=title,
        verdict=verdict,
        chart=None if chart is None else drawn(chart),
        sections=[part for part in parts if part[1] or part[2] or part[0].folded],
        warning=warning,
        facts={"Written": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}", **facts},
        # Both are files of this package.
        script=Markup(script),
        style=Markup(style),
        digest=digest,
    )


def _sections(content: Content, folder: Path) -> list[Section]:
    found = [
        setting_sections.settings(content),
        outcome_sections.tests(content),
        outcome_sections.curves(content),
        cost_sections.targets(content),
        client_sections.clients(content),
        model_sections.models(content),
        outcome_sections.classes(content),
        outcome_sections.survival(content),
        outcome_sections.forecasts(content),
        outcome_sections.segmentation(content),
        client_sections.partitions(content),
        client_sections.topologies(content),
        setting_sections.plans(content),
        cost_sections.phases(content),
        cost_sections.lost_clients(content),
        cost_sections.virtual_time(content),
        setting_sections.runs(content, folder),
        setting_sections.configs(content),
    ]
    return [section for section in found if section is not None]


def _title(content: Content) -> str:
    run = content.runs[0]
    if content.single:
        return f"Run {run.folder.name}"
    return f"{len(content.runs)} runs, {len(content.settings)} settings"


def _facts(content: Content) -> dict[str, Any]:
    lost = sum(run.outcome != "finished" for run in content.runs)
    facts: dict[str, Any] = {}
    if content.criterion.columns:
        facts["Criterion"] = f"last {content.criterion.name} of each run"
        if number := num_tests(content):
            facts["Test examples"] = number
    if lost:
        facts["Not finished"] = f"{lost} of {len(content.runs)} runs"
    return facts
