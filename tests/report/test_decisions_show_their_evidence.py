"""Each decision is a row with its verdict in words, its figures and its reason."""

from html.parser import HTMLParser

import pytest

from rex_operator.report import write_report
from rex_operator.report.figures import draw
from rex_operator.report.reader import read_record
from rex_operator.report.summary import summarise
from tests.report.records import plausible, write


class Rows(HTMLParser):
    """Cells of the decisions table, as text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = False
        start = html.index('id="decisions"')
        self.feed(html[start : html.index("</table>", start)])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    folder = write(tmp_path_factory.mktemp("run"), plausible())
    return Rows(write_report(folder).read_text(encoding="utf-8")).rows


def row(rows: list[list[str]], verdict: str) -> list[str]:
    return next(cells for cells in rows if cells[2].endswith(verdict))


def test_an_accepted_change_shows_how_sure_it_is(rows: list[list[str]]) -> None:
    _, _, verdict, plan, _, p, effect, a12, n, _, why = row(rows, "accepted")
    assert verdict == "✓accepted", "never by colour alone"
    assert plan.startswith("64 → 192")
    assert p == "2.1·10−9"
    assert effect == "+34.1 %+29.1 % to +39.1 %"
    assert a12 == "0.97"
    assert n.startswith("60 / 40")
    assert why == "Shown to be better."


def test_a_rejected_change_shows_the_p_value_of_being_worse(rows: list[list[str]]) -> None:
    assert row(rows, "rejected")[5] == "4.2·10−5"


def test_an_inconclusive_trial_shows_both_p_values(rows: list[list[str]]) -> None:
    assert row(rows, "inconclusive")[5] == "0.310worse: 0.240"


def test_a_rebalance_shows_the_shares_that_moved(rows: list[list[str]]) -> None:
    assert row(rows, "rebalanced")[3] == "64from 16 · 16 · 16 · 16to 23 · 23 · 12 · 6"


def test_a_trial_shows_what_was_expected_of_it(rows: list[list[str]]) -> None:
    assert row(rows, "trial started")[4] == "+38.0 %"


def test_a_verdict_shows_what_was_expected_and_what_finding_out_has_cost(rows: list[list[str]]) -> None:
    cells = row(rows, "rejected")
    assert cells[4] == "+9.0 %"
    assert cells[9] == "3.2 s81 steps−512 samples"
    assert cells[8] == "60 / 40look 1, A-B-A"


def test_what_else_was_considered_is_folded_away(rows: list[list[str]]) -> None:
    assert row(rows, "trial started")[10] == (
        "Expected gain 38 % at 192.2 considered192: +38.0 %, chance 90 %128 in 2 passes: +11.0 %, chance 40 %"
    )


def test_expectations_are_held_against_measurements(tmp_path_factory: pytest.TempPathFactory) -> None:
    record = read_record(write(tmp_path_factory.mktemp("run"), plausible()) / "record.jsonl")
    figure = next(figure for figure in draw(record, summarise(record)) if figure.id == "expectations")
    drawn = {trace["name"]: (trace["x"], trace["y"]) for trace in figure.traces if trace["mode"] == "markers"}
    assert drawn == {"accepted": ([38.0], [34.1]), "rejected": ([9.0], [-12.3]), "inconclusive": ([3.0], [1.1])}
    assert figure.takeaway == (
        "Over 3 judged trials, measured less expected gain: -3.9 points in the median; typically 3.9 points apart."
        " 2 of 3 expectations lie within the 95 % interval of the measurement."
    )


def test_a_verdict_is_marked_at_the_batch_that_was_tried(tmp_path_factory: pytest.TempPathFactory) -> None:
    record = read_record(write(tmp_path_factory.mktemp("run"), plausible()) / "record.jsonl")
    figure = next(figure for figure in draw(record, summarise(record)) if figure.id == "global-batch")
    marked = {
        trace["name"]: trace["y"] for trace in figure.traces if trace.get("mode") == "markers" and "text" in trace
    }
    assert marked == {"accepted": [192], "rejected": [512], "inconclusive": [208]}


def test_passes_are_those_of_the_worker_with_the_most(tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = plausible()
    start = next(line["decision"] for line in lines if line.get("decision", {}).get("kind") == "accepted")
    start["plan_to"] |= {"accumulation": 4, "passes": {"w0": 1}}
    start["plan_from"] |= {"accumulation": 2}
    html = write_report(write(tmp_path_factory.mktemp("run"), lines)).read_text(encoding="utf-8")
    assert row(Rows(html).rows, "accepted")[3].startswith("64 in 2 passes → 192 in up to 4 passes")
