"""Reports in a real browser: extra `browser`, and a Chromium that Playwright or the system has."""

import shutil
from pathlib import Path

import pytest

SYSTEM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PAGES = ("sweep", "run", "few")


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    with sync_api.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        path = str(own) if own.exists() else next(filter(None, map(shutil.which, SYSTEM)), None)
        if path is None:
            pytest.skip("no Chromium: `playwright install chromium`, or the system's")
        # Root, as in containers, may not use the sandbox; the page is our own.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser, request):
    opened = []
    pages = request.getfixturevalue("pages")  # made only where there is a browser

    def visit(name, *, width=1200, scheme="light"):
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
        opened.append(context)
        page = context.new_page()
        page.problems, page.asked = [], []
        page.on("console", lambda message: page.problems.append(message.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto((pages / f"{name}.html").as_uri())
        return page

    yield visit
    for context in opened:
        context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_offline_without_an_error_and_draws_every_mark(visit, name):
    page = visit(name)
    assert len(page.asked) == 1
    outside = page.evaluate(
        """() => [...document.querySelectorAll("svg.chart")].filter((chart) => {
            const frame = chart.getBoundingClientRect();
            const marks = [...chart.querySelectorAll(".mark")];
            return !marks.length || marks.some((mark) => {
                const box = mark.getBoundingClientRect();
                return !(box.width > 0 && box.height > 0 && box.left >= frame.left - 1
                    && box.right <= frame.right + 1 && box.top >= frame.top - 1
                    && box.bottom <= frame.bottom + 1);
            });
        }).map((chart) => chart.getAttribute("aria-label"))"""
    )
    assert outside == []
    assert page.locator("svg.chart").count() >= 5
    assert page.problems == []


def test_the_verdict_is_on_the_first_screen(visit):
    for width in (1200, 400):
        box = visit("sweep", width=width).locator(".verdict").bounding_box()
        assert box["y"] + box["height"] < 900


def test_a_mark_is_read_by_pointer_and_by_keyboard(visit):
    page = visit("sweep")
    chart = page.locator("section[aria-labelledby=curves] svg.chart").first
    figure = page.locator("section[aria-labelledby=curves] figure").first
    tip = figure.locator(".tip")
    tips = chart.locator(".mark").evaluate_all("marks => marks.map((m) => m.dataset.tip)")
    # The last one is drawn on top of all others.
    chart.locator(".mark").last.hover()
    assert tip.inner_text() == tips[-1]
    page.mouse.move(0, 0)
    assert tip.inner_text() == ""
    chart.focus()
    assert tip.inner_text() == tips[0]
    for key, expected in [("ArrowRight", tips[1]), ("ArrowLeft", tips[0]), ("End", tips[-1])]:
        page.keyboard.press(key)
        assert tip.inner_text() == expected
    page.keyboard.press("ArrowUp")
    assert tip.inner_text().split(",")[0] == "fedprox"
    page.keyboard.press("Escape")
    assert tip.inner_text() == ""
    assert page.problems == []


def test_the_tab_key_reaches_the_content_and_each_chart_once(visit):
    page = visit("run")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    charts = 0
    while True:
        page.keyboard.press("Tab")
        role, name = page.evaluate(
            """[document.activeElement.getAttribute("aria-roledescription"),
                document.activeElement.className]"""
        )
        if name == "skip" or page.evaluate("document.activeElement === document.body"):
            break
        charts += role == "chart"
    assert charts == page.locator("svg.chart").count()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_page_does_not_scroll_sideways_and_text_has_contrast(visit, scheme):
    page = visit("sweep", width=400, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    lightness = page.evaluate(
        """() => ["backgroundColor", "color"].map((name) =>
            getComputedStyle(document.body)[name].match(/[0-9]+/g).slice(0, 3)
                .reduce((sum, part) => sum + Number(part) / 765, 0))"""
    )
    assert (lightness[0] > lightness[1]) == (scheme == "light")
    assert abs(lightness[0] - lightness[1]) > 0.7


def test_a_printed_page_has_no_empty_controls(visit):
    page = visit("sweep")
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    assert page.locator("details").first.is_hidden()
    assert page.locator("svg.chart").first.is_visible()
    assert page.pdf()[:5] == b"%PDF-"


def test_tables_are_copied_and_figures_are_saved(visit):
    page = visit("sweep")
    rows = [["setting", "a_b"], ["x, y", '5 % "q" ± 1']]
    given = page.evaluate("(rows) => [toCsv(rows), toLatex(rows)]", rows)
    assert given[0] == 'setting,a_b\n"x, y","5 % ""q"" ± 1"\n'
    assert r"setting & a\_b \\" in given[1]
    assert r'x, y & 5 \% "q" $\pm$ 1 \\' in given[1]
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as SVG").first.click()
    text = download.value.path().read_text(encoding="utf-8")
    assert text.startswith("<svg") and "<style" in text
    tables = page.locator("table").count()
    assert page.get_by_text("Copy as CSV").count() == tables
    assert page.problems == []
