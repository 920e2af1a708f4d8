"""The page opens offline, holds what it needs, and takes no orders from what a run said."""

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rex_operator.report import write_report
from tests.report.records import plausible, write

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """What a browser would load, run and show."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.policy = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self.links += [value for key in ("src", "href", "srcset", "action") if (value := values.get(key))]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values.get("content") or ""

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = write_report(write(tmp_path_factory.mktemp("run"), plausible()))
    return Page(path.read_text(encoding="utf-8"))


def test_nothing_is_loaded_from_elsewhere(page: Page) -> None:
    assert all(link.startswith("#") for link in page.links)
    assert "default-src 'none'" in page.policy
    assert "http" not in page.policy


def test_each_plot_has_its_data_and_a_description(page: Page) -> None:
    figures = json.loads(next(script for script in page.scripts if script.startswith("[{")))
    names = [figure["id"] for figure in figures]
    assert names == ["local-batches", "global-batch", "throughput", "learning-samples", "learning-time", "compute-wait",
                     "spread", "noise", "expectations"]  # fmt: skip
    assert page.tags.count("figure") == page.tags.count("figcaption") == len(names)


def bars(path: Path) -> list[str]:
    scripts = Page(path.read_text(encoding="utf-8")).scripts
    figures = json.loads(next(script for script in scripts if script.startswith("[{")))
    (figure,) = [figure for figure in figures if figure["id"] == "compute-wait"]
    return sorted({trace["name"] for trace in figure["traces"]})


def test_communication_is_told_apart_where_the_record_does(tmp_path: Path) -> None:
    lines = plausible()
    older = [{key: value for key, value in line.items() if key != "comm_s"} for line in lines]
    told = bars(write_report(write(tmp_path, lines)))
    assert told == ["communicating", "compute", "waiting for others"]
    assert bars(write_report(write(tmp_path, older))) == ["compute", "waiting for others and reducing"]


def test_what_a_run_says_is_text_and_never_markup(tmp_path: Path) -> None:
    lines = plausible()
    hostile = [
        *lines[:-1],
        {"t": 0, "kind": "start", "job": ATTACK, "devices": {"w0": ATTACK}},
        {"t": 0, "kind": "event", "event": ATTACK, "message": ATTACK},
        {"t": 99, "kind": "metrics", "samples": 1, "values": {ATTACK: 1.0}},
        {"t": 99, "kind": "decision", "decision": {"kind": ATTACK, "reason": ATTACK}},
        {"t": 99, "kind": "end", "success": False, "reason": ATTACK, "message": ATTACK},
    ]
    clean = Page(write_report(write(tmp_path, lines)).read_text(encoding="utf-8"))
    html = write_report(write(tmp_path, hostile)).read_text(encoding="utf-8")
    assert "<img" not in Page(html).tags
    assert Page(html).tags.count("script") == clean.tags.count("script")
    assert ATTACK not in html.replace("\\u003c", "<").replace("\\u003e", ">"), "plotly reads HTML in labels, too"


def test_the_page_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = write_report(write(tmp_path, plausible()))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["record.jsonl", "report.html"]
    assert path.name == "report.html"


@pytest.mark.component
def test_a_browser_draws_every_plot(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed")
    path = write_report(write(tmp_path, plausible()))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--dump-dom"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", path.as_uri()]
    dom = subprocess.run([browser, *flags], capture_output=True, text=True, timeout=120, check=True).stdout
    assert dom.count('class="plot js-plotly-plot"') == 8
    assert dom.count("main-svg") >= 8
