"""The page of a report in a real headless browser: Debian's Chromium, driven by playwright, from disk.

A machine without Chromium skips these tests and says so; where ``SPIRITLEVEL_BROWSER=required`` is set, as in CI,
they fail.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from spiritlevel.study.report import report
from spiritlevel.study.statistics import Settings
from studies import HOSTILE, made_up

QUICK = Settings(resamples=200, permutations=200)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        words = "no Chromium on this machine, so no HTML page was tested in a browser: apt-get install chromium"
        if os.environ.get("SPIRITLEVEL_BROWSER") == "required":
            pytest.fail(words)
        pytest.skip(words)
    with sync_playwright() as driver:
        # root in a container has no user namespace for the sandbox; the pages are our own
        one = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(made_up(), QUICK).write_page(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def open_page(browser: Browser, complaints: list[str]) -> Iterator[Any]:
    """A function that opens a file; whatever the page says on the console or asks the network for is an error."""
    contexts = []

    def opened(path: Path, scheme: str = "light", width: int = 1280) -> Page:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: complaints.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("request", lambda r: None if r.url.startswith("file:") else complaints.append(f"asked for {r.url}"))
        page.on("dialog", lambda d: complaints.append(d.message) or d.dismiss())
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def points(page: Page) -> int:
    return page.locator("#scatter circle:not(.ring):not(.dim)").count()


def test_it_renders_every_plot(open_page: Any, plain: Path) -> None:
    """Kills: an error before the last plot, a policy that refuses our own script, empty frames."""
    page = open_page(plain)
    assert points(page) == 40
    assert page.locator("#forest .row").count() == 6  # four measures, training loss, norm
    for home in ("#taus-by-radius polyline", "#values-by-radius polyline", "#batches path", "#orbit circle"):
        assert page.locator(home).count() > 1
    assert page.locator("#checkpoints tbody tr").count() == 40
    for chart in page.locator("svg.chart").all():
        box = chart.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 60
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hover_and_arrow_keys_show_the_checkpoint(open_page: Any, plain: Path) -> None:
    """Every value in the tip is that checkpoint's own. Kills: an index into sorted points used for names."""
    page = open_page(plain)
    table = made_up()
    page.locator("#scatter").scroll_into_view_if_needed()
    dots = page.locator("#scatter circle:not(.ring)")
    for place in (0, 7, 39):
        box = dots.nth(place).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        lines = page.locator("#tip").inner_text().splitlines()
        i = table.names.index(lines[0])
        measure, value = lines[1].split(": ")
        assert float(value) == pytest.approx(table.complexity[measure][i], rel=1e-3)
        assert float(lines[2].split(": ")[1]) == pytest.approx(table.gen["test_gap"][i], rel=1e-3)
        assert f"lr: {table.hp['lr'][i]:g}" in lines
    page.mouse.move(1, 1)
    assert page.locator("#tip").is_hidden()
    page.locator("#scatter-chart").focus()
    said = []
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        said.append(page.locator("#say").inner_text())
    best = page.locator("#measure").input_value()
    order = sorted(range(40), key=lambda i: table.complexity[best][i])
    assert [s.split(",")[0] for s in said] == [table.names[i] for i in order[:3]]


def test_the_table_sorts_and_filters(open_page: Any, plain: Path) -> None:
    """Numbers as numbers, missing values last, both ways; conditions and words; the plots follow."""
    page = open_page(plain)
    table = made_up()

    def column(name: str) -> list[str]:
        names = page.locator("#checkpoints thead th").all_inner_texts()
        place = next(i for i, n in enumerate(names) if n.startswith(name)) + 1
        return page.locator(f"#checkpoints tbody tr:not([hidden]) > :nth-child({place})").all_inner_texts()

    for _, reverse in (("ascending", False), ("descending", True)):
        page.get_by_role("button", name="complexity.adaptive@0.05", exact=True).click()
        found = column("complexity.adaptive@0.05")
        assert found[-1] == "–"
        assert [float(v) for v in found[:-1]] == sorted((float(v) for v in found[:-1]), reverse=reverse)
    assert page.locator("#checkpoints th[aria-sort=descending]").count() == 1
    page.locator("#checkpoints").get_by_role("button", name="checkpoint", exact=True).click()
    assert column("checkpoint") == sorted(table.names)
    page.fill("#filter", "optimiser=sgd test_gap<0.07")
    wanted = [
        n for i, n in enumerate(table.names) if table.hp["optimiser"][i] == "sgd" and table.gen["test_gap"][i] < 0.07
    ]
    assert 0 < len(wanted) < 40
    assert column("checkpoint") == wanted
    assert page.locator("#count").inner_text() == f"{len(wanted)} of 40 checkpoints"
    page.wait_for_timeout(300)
    assert points(page) == len(wanted)
    page.fill("#filter", "VIT-0007")
    assert column("checkpoint") == ["vit-0007"]
    page.fill("#filter", "")
    assert len(column("checkpoint")) == 40


def test_the_taus_sort_too(open_page: Any, plain: Path) -> None:
    page = open_page(plain)
    region = page.get_by_role("region", name="Taus of all measures and targets")
    region.get_by_role("button", name="tau-b").click()
    values = [float(v.replace("−", "-")) for v in region.locator("tbody tr > :nth-child(3)").all_inner_texts()]
    assert values == sorted(values)


def test_choices_change_the_plots(open_page: Any, plain: Path) -> None:
    """Kills: selects that do nothing; a row of the forest plot that cannot be reached by keyboard."""
    page = open_page(plain)
    page.select_option("#target", "rotated_gap")
    page.select_option("#measure", "adaptive@0.05")
    assert points(page) == 39  # one could not be measured
    tau = next(r for r in report(made_up(), QUICK).analysis.of("rotated_gap") if r.measure == "adaptive@0.05").tau.value
    assert f"{tau:.2f}".replace("-", "−") in page.locator("#scatter-words").inner_text()
    page.select_option("#colour", "optimiser")
    assert page.locator("#legend").inner_text().split() == ["adamw", "sgd"]
    assert len({c.get_attribute("fill") for c in page.locator("#scatter circle:not(.ring)").all()}) == 2
    page.locator('#forest .row[data-measure="geodesic@0.05"]').focus()
    page.keyboard.press("Enter")
    assert page.locator("#measure").input_value() == "geodesic@0.05"
    before = page.locator("#scatter circle").first.get_attribute("cx")
    page.locator("#log").click()
    assert page.locator("#scatter circle").first.get_attribute("cx") != before
    page.locator("#checkpoints tbody tr").nth(5).click()
    assert float(page.locator("#scatter .ring").get_attribute("cx")) > 0


def test_hostile_names_are_shown_and_do_nothing(open_page: Any, tmp_path: Path) -> None:
    """In every plot, tip, select and table. Kills: innerHTML anywhere; data that closes its element."""
    page = open_page(report(made_up(hostile=True), QUICK, HOSTILE[0]).write_page(tmp_path / "hostile.html"))
    for i, word in enumerate(HOSTILE):
        page.select_option("#measure", f"{word}@0.1")
        page.select_option("#target", f"{word}_gap")
        page.select_option("#colour", word)
        page.locator("#checkpoints tbody tr").nth(i).click()
        assert page.locator("#checkpoints tbody th").nth(i).text_content() == word
    page.locator("#scatter-chart").focus()
    for _ in range(45):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("window.broken") is None
    assert page.locator("img, iframe, svg[onload]").count() == 0
    assert page.title() == HOSTILE[0]


def contrast(page: Page, ink: str, paper: str) -> float:
    """WCAG contrast of two colours of the page's palette."""
    script = """(name) => {
        const e = document.createElement('i');
        e.style.color = `var(${name})`;
        document.body.append(e);
        const channels = getComputedStyle(e).color.match(/[0-9.]+/g).map(Number);
        e.remove();
        return channels;
    }"""

    def light(name: str) -> float:
        channels = [v / 255 for v in page.evaluate(script, name)[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    one, two = sorted((light(ink), light(paper)))
    return (two + 0.05) / (one + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(scheme: str, open_page: Any, plain: Path) -> None:
    """Text at 4.5 : 1 and marks at 3 : 1 or more on what they stand on (WCAG AA); the button switches."""
    page = open_page(plain, scheme)
    for ink, paper in (("--ink", "--paper"), ("--ink", "--card"), ("--soft", "--card"), ("--soft", "--paper"),
                       ("--link", "--card"), ("--good", "--good-bg"), ("--warn", "--warn-bg"), ("--ink", "--note-bg"),
                       ("--ink", "--good-bg"), ("--ink", "--warn-bg"), ("--warn", "--card")):  # fmt: skip
        assert contrast(page, ink, paper) >= 4.5, (ink, paper)
    for mark in (*(f"--c{i}" for i in range(7)), "--base"):
        assert contrast(page, mark, "--card") >= 3, mark
    paper = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(paper)
    page.locator("#theme").click()
    assert page.evaluate(paper) != before


def test_everything_has_a_name_and_works_by_keyboard(open_page: Any, plain: Path) -> None:
    """Kills: controls without labels, plots without words, headings that skip a level, unlabelled regions."""
    page = open_page(plain)
    nameless = page.evaluate("""() => {
        const all = [...document.querySelectorAll('button, select, input, [tabindex="0"], svg.chart, section')];
        const named = (e) => e.labels?.length || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby');
        return all.filter((e) => !(named(e) || e.textContent.trim())).map((e) => e.outerHTML.slice(0, 80));
    }""")
    assert nameless == []
    assert page.evaluate("document.documentElement.lang") == "en"
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    broken = page.evaluate("""() => {
        const all = [...document.querySelectorAll('[aria-labelledby], [aria-describedby], a[href^="#"]')];
        const ids = (e) => [e.getAttribute('aria-labelledby'), e.getAttribute('aria-describedby'), e.hash?.slice(1)];
        return all.flatMap(ids).filter((id) => id && !document.getElementById(id));
    }""")
    assert broken == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_it_prints(open_page: Any, plain: Path, tmp_path: Path) -> None:
    """Controls go, tables are whole, ink is dark on white even where the screen is dark."""
    page = open_page(plain, "dark", width=760)  # A4
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("#filter").is_hidden()
    assert page.locator("#theme").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    scroll = page.locator(".scroll").last
    assert scroll.evaluate("(e) => e.scrollHeight <= e.clientHeight + 2")
    assert page.locator("details:not([open])").count() == 0
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 20_000
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0


def test_a_telephone_can_show_it(open_page: Any, plain: Path) -> None:
    page = open_page(plain, width=390)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_thousand_checkpoints_and_twenty_measures_stay_usable(open_page: Any, tmp_path: Path) -> None:
    """1.5 MB at most, and two seconds of the browser's own CPU time to load (limits: 3 MB, 8 s for slow machines)."""
    table = made_up(1000, measures=20)
    path = report(table, Settings(resamples=100, permutations=100)).write_page(tmp_path / "large.html")
    assert path.stat().st_size < 3_000_000
    page = open_page(path)
    assert points(page) >= 999
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    spent = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    print(f"{path.stat().st_size / 1e6:.2f} MB, {spent['TaskDuration']:.2f} s, {spent['Nodes']:.0f} nodes")
    assert spent["TaskDuration"] < 8
    page.fill("#filter", "vit-0999")
    assert page.locator("#count").inner_text() == "1 of 1000 checkpoints"
    page.get_by_role("button", name="gen.test_gap").click()
    assert page.locator("#checkpoints tbody tr:not([hidden])").count() == 1
