import base64
import json
import re
import time
from itertools import pairwise
from urllib.parse import unquote

import numpy as np
import pytest
import scipy
from html_pages import parse
from PIL import Image
from run_folders import accuracies, write_run

from flfast.output.report.content import Content
from flfast.output.report.page import render
from flfast.output.report.verdict import verdict
from flfast.output.results.runs import find_runs, read_run
from flfast.output.results.table import read_rows
from flfast.report import main

PAGES = ("sweep", "run", "few")
EVERYWHERE = {"Curves", "Costs to a target", "Clients", "Partition", "Time and bytes", "Runs"}


@pytest.fixture
def page(pages):
    def page(name):
        return parse((pages / f"{name}.html").read_text(encoding="utf-8"))

    return page


@pytest.fixture
def compare(tmp_path):
    """Content of runs with given last accuracies, by algorithm and in the order of seeds."""

    def compare(results, **options):
        for name, values in results.items():
            for seed, value in enumerate(values):
                write_run(
                    tmp_path / name / str(seed),
                    config={"seed": seed},
                    choices={"algorithm": name},
                    rows=accuracies(0.1, value, **options),
                )
        return Content(find_runs([tmp_path]))

    return compare


def last_values(swept):
    """The accuracy of the models that clients would use, by algorithm, in the order of seeds."""
    jobs = [read_rows(swept / str(job) / "metrics.csv")[-1] for job in range(9)]
    values = [float(row["personal/accuracy"] or row["local/accuracy"]) for row in jobs]
    return dict(zip(("fedavg", "fedprox", "ditto"), np.reshape(values, (3, 3)), strict=True))


def percent(*values):
    return [f"{100 * value:.2f}" for value in values]


def test_intervals_are_those_of_scipy(swept, page):
    (chart,) = (f for f in page("sweep").all("figure") if f.text.startswith("Last personal"))
    rows = {row.text.split()[0]: row.text for row in chart.all("tr")}
    for name, values in last_values(swept).items():
        scale = scipy.stats.sem(values)
        low, high = np.clip(scipy.stats.t.interval(0.95, 2, loc=values.mean(), scale=scale), 0, 1)
        mean, low, high = percent(values.mean(), low, high)
        assert f"{name} {mean} % [{low}, {high}] 3" in rows[name]
        assert " %, ".join(percent(*values)) in rows[name]


def test_the_first_screen_says_who_is_best_and_whether_that_is_certain(swept, page):
    values = last_values(swept)
    best, second, _ = sorted(values, key=lambda name: -values[name].mean())
    pairs = [("fedavg", "fedprox"), ("fedavg", "ditto"), ("fedprox", "ditto")]
    # Equal accuracies of all seeds are no test, and do not count for the correction.
    tested = [pair for pair in pairs if np.ptp(values[pair[0]] - values[pair[1]]) > 1e-12]
    raw = {p: scipy.stats.ttest_rel(values[p[0]], values[p[1]]).pvalue for p in tested}
    order = sorted(tested, key=raw.__getitem__)
    (said,) = page("sweep").having("verdict")
    assert f"{best} " in said.text.split(":")[0]
    assert f"{percent(values[best].mean())[0]} %" in said.text
    nearest = next((p for p in tested if set(p) == {best, second}), None)
    if nearest:
        before = order[: order.index(nearest) + 1]
        adjusted = max(min(1, raw[p] * (len(order) - n)) for n, p in enumerate(before))
        assert f"p = {adjusted:.3f} against {second}" in said.text or adjusted < 0.001
    assert (" uncertain " if nearest is None or adjusted >= 0.05 else " certain ") in said.text


def test_a_clear_difference_is_certain(compare):
    found = verdict(compare({"good": [0.9, 0.91, 0.92], "bad": [0.5, 0.511, 0.519]}))
    assert found.mark == "certain"
    assert found.result.startswith("good is best: global/accuracy 91.00 % [88.52, 93.48]")
    assert "That is 40.00 points [39.75, 40.25] above bad" in found.result
    assert "certain at the 5 % level: p < 0.001 against bad" in found.certainty


def test_an_unclear_difference_is_not_certain(compare):
    found = verdict(compare({"one": [0.9, 0.8, 0.91], "other": [0.85, 0.86, 0.8]}))
    assert found.mark == "uncertain"
    assert found.result.startswith("one has the highest mean:")
    assert "not certain: p = 0.572 against other" in found.certainty


def test_certain_against_the_next_best_is_not_certain_against_all(compare):
    results = {"a": [0.9, 0.91, 0.92], "b": [0.8, 0.811, 0.819], "c": [0.3, 0.9, 0.6]}
    found = verdict(compare(results))
    assert found.mark == "uncertain"
    assert "certainly better than b (p < 0.001), but not certainly than c" in found.certainty


def test_two_seeds_are_too_few(compare):
    found = verdict(compare({"good": [0.9, 0.91], "bad": [0.1, 0.11]}))
    assert found.mark == "too few seeds"
    assert "2 common seeds, and a test needs 3" in found.certainty


def test_equal_differences_are_not_certain(compare):
    found = verdict(compare({"a": [0.5, 0.6, 0.7], "b": [0.4, 0.5, 0.6]}))
    assert found.mark == "uncertain"
    assert "in all seeds the difference to b is the same" in found.certainty


def test_runs_without_accuracy_are_compared_by_their_loss(compare):
    options = {"column": "global/loss"}
    found = verdict(compare({"high": [0.9, 0.91, 0.92], "low": [0.5, 0.511, 0.519]}, **options))
    assert found.mark == "certain"
    assert found.result.startswith("low is best: global/loss 0.51 [")
    assert "0.4 [0.3975, 0.4025] below high" in found.result


def test_failed_runs_are_counted_and_compared_with_nothing(compare, tmp_path):
    content = compare({"only": [0.5, 0.6, 0.7]})
    write_run(tmp_path / "broken", choices={"algorithm": "broken"})
    found = Content([*content.runs, read_run(tmp_path / "broken")])
    assert (
        verdict(found).certainty
        == "There is nothing to compare: other settings without a result: 1."
    )
    assert "1 of 4 runs" in render(found)
    assert verdict(Content(found.runs[-1:])).result == "No run has a result."
    parse(render(Content(found.runs[-1:])))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_all_sections_and_every_chart_has_marks(page, name):
    found = page(name)
    sections = {heading.text for heading in found.all("h2")}
    assert sections >= EVERYWHERE | {"Summary", "Configuration"}
    assert ("Tests" in sections) == (name != "run")
    assert not sections & {"Virtual time", "Lost clients", "Plan by round"}
    charts = found.having("chart")
    assert len(charts) >= (5 if name == "run" else 8)
    for chart in charts:
        marks = chart.having("mark")
        assert marks, chart.attributes["aria-label"]
        assert all(mark.attributes["data-tip"] for mark in marks)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_needs_no_network(pages, page, name):
    text = (pages / f"{name}.html").read_text(encoding="utf-8")
    body = text[: text.index('<h2 id="configuration"')]
    assert not re.search(r"https?:|url\(|@import|//[a-z]", body)
    for element in page(name).all():
        assert not {"src", "srcset", "action"} & element.attributes.keys()
        assert element.attributes.get("href", "#").startswith(("#", "./"))
    policies = [e for e in page(name).all("meta") if "http-equiv" in e.attributes]
    assert [p.attributes["content"].split(";")[0] for p in policies] == ["default-src 'none'"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_aloud(page, name):
    found = page(name)
    levels = [int(h.tag[1]) for h in found.all("h1", "h2", "h3")]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [e.attributes["id"] for e in found.all() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    targets = {e.attributes["href"] for e in found.all("a")}
    assert {target[1:] for target in targets if target.startswith("#")} <= set(ids)
    for table in found.all("table"):
        assert next(table.all("caption")).text
        assert all(cell.attributes.get("scope") in {"col", "row"} for cell in table.all("th"))
    for figure in found.all("figure"):
        assert next(figure.all("figcaption")).text
        assert next(figure.all("svg")).tag
        # The same values as a table.
        assert len(list(next(figure.all("table")).all("tr"))) > 1


def test_text_from_files_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>"
    for seed, value in enumerate((0.5, 0.6)):
        clients = [{"round": 1, "client_id": 0, "local/accuracy": 0.5, "reason": evil}]
        config = {"seed": seed, "note": f'{evil}"&{value}', "trainer": {evil: evil}}
        choices = {"algorithm": f'{evil}"{seed}', "data": evil}
        rows = accuracies(0.1, value)
        rows[1]["plan/strategy"] = evil
        folder = tmp_path / f"<b>{seed}"
        write_run(folder, config=config, choices=choices, rows=rows, clients=clients)
    text = render(Content(find_runs([tmp_path])))
    page = parse(text)
    assert len(list(page.all("script"))) == 1
    assert not list(page.all("b"))
    assert evil not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_sections_that_need_data_are_there_with_them(tmp_path):
    rows = accuracies(0.1, 0.5, 0.6, 0.7)
    for n, row in enumerate(rows[1:], start=1):
        row |= {"cohort/clients": 8, "cohort/rejected": n, "cohort/dropped": 0}
        row |= {"clock/seconds": 60.0 * n, "clock/staleness": 0.5 * n, "clock/in_flight": 3}
        row |= {"plan/batch_size": 10 * n, "plan/strategy": "ddp" if n > 1 else "single"}
    page = parse(render(Content([read_run(write_run(tmp_path / "run", rows=rows))])))
    sections = {s.attributes["aria-labelledby"]: s for s in page.all("section")}
    assert not {"clients", "partition", "tests"} & sections.keys()
    lost = sections["lost-clients"]
    assert next(lost.all("h3")).text == "Clients rejected in each round"
    assert lost.text.endswith("this run 24 6 0 0 25 %")
    assert "from 1: single, from 2: ddp" in sections["plan-by-round"].text
    assert "over virtual time" in sections["curves"].text
    assert "this run 3 min" in sections["virtual-time"].text
    # 60 % after two rounds of 2 s, 2 MB and a virtual minute each.
    assert "60 % 2 4 s 4.0 MB 2 min 1" in sections["costs-to-a-target"].text


def test_a_graph_is_drawn_with_the_accuracy_of_its_clients(tmp_path, caplog):
    accuracy, neighbours = [0.5, 0.9, 0.7, 0.5], [[1], [0, 2], [1], []]  # one has none
    clients = [
        {"round": 1, "client_id": k, "personal/accuracy": a} for k, a in enumerate(accuracy)
    ]
    sizes = {"num_clients": 4, "num_classes": 1, "num_examples": 8, "num_central_test": 0}
    sizes["client_size"] = {"min": 2, "median": 2, "max": 2}
    for name in ("run", "damaged"):
        folder = write_run(tmp_path / name, rows=accuracies(0.1, 0.5), clients=clients)
        listed = [
            {"client_id": k, "train": 2, "test": 0, "labels": [2], "neighbours": near}
            for k, near in enumerate(neighbours if name == "run" else [["<b>"]] * 4)
        ]
        (folder / "partition.json").write_text(json.dumps({**sizes, "clients": listed}))
    page = parse(render(Content([read_run(tmp_path / "run")])))
    (section,) = (s for s in page.all("section") if s.attributes["aria-labelledby"] == "topology")
    (lines,) = section.having("grid")
    assert lines.attributes["d"].count("M") == 2
    marks = section.having("mark")
    shades = [mark.attributes["class"].split()[1] for mark in marks]
    assert shades == ["q0", "q4", "q2", "q0"]
    assert marks[1].attributes["data-tip"] == "client 1, 90.00 %, 2 neighbours"
    assert "client 1 90.00 %" in section.text and "50.00 % to 90.00 %" in section.text
    page = parse(render(Content([read_run(tmp_path / "damaged")])))
    assert "topology" not in {s.attributes["aria-labelledby"] for s in page.all("section")}
    assert "clients' data are not shown" in caplog.text


def test_without_accuracy_costs_are_those_until_a_loss(tmp_path):
    for name, losses in {"a": (2.0, 1.0, 0.5, 0.7), "b": (2.0, 0.4, 0.4, 0.3)}.items():
        rows = accuracies(*losses, column="global/loss")
        write_run(tmp_path / name, choices={"algorithm": name}, rows=rows)
    page = parse(render(Content(find_runs([tmp_path]))))
    sections = {s.attributes["aria-labelledby"]: s for s in page.all("section")}
    text = sections["costs-to-a-target"].text
    # The lowest loss of a, after two rounds of 2 s and 2 MB each. b has it after one.
    assert "Costs until global/loss reaches 0.5" in text
    assert "a 2 4 s 4.0 MB" in text and "b 1 2 s 2.0 MB" in text


def test_a_diverged_run_sets_no_target(tmp_path):
    for name, losses in {"good": (2.0, 1.0, 0.5), "diverged": (2.0, 9.0, 99.0)}.items():
        rows = accuracies(*losses, column="global/loss")
        write_run(tmp_path / name, choices={"algorithm": name}, rows=rows)
    page = parse(render(Content(find_runs([tmp_path]))))
    sections = {s.attributes["aria-labelledby"]: s for s in page.all("section")}
    text = sections["costs-to-a-target"].text
    assert "Costs until global/loss reaches 0.5" in text
    assert "diverged - - -" in text and "good 2 4 s 4.0 MB" in text


def test_the_training_loss_is_no_target(tmp_path):
    write_run(tmp_path / "a", rows=accuracies(2.0, 1.0, 0.5, column="train/loss"))
    page = parse(render(Content(find_runs([tmp_path]))))
    found = {s.attributes["aria-labelledby"] for s in page.all("section")}
    assert "curves" in found and "costs-to-a-target" not in found


def test_a_page_is_small_and_soon_there(swept):
    """Of nine runs: less than 400 kB, a tenth of a second of the processor, here with leeway."""
    content = Content(find_runs([swept]))
    page, seconds = render(content), []
    for _ in range(3):
        start = time.process_time()
        render(content)
        seconds.append(time.process_time() - start)
    assert len(page) < 400_000
    charts = re.findall("<svg viewBox.*?</svg>", page, re.DOTALL)
    marks = page.count("data-tip")
    assert sum(map(len, charts)) < 400 * marks, "bytes for each mark and its text"
    assert min(seconds) < 0.5


def test_a_sweep_and_every_run_of_it_leave_a_report(swept):
    assert "9 runs, 3 settings" in (swept / "report.html").read_text(encoding="utf-8")
    for job in range(9):
        page = parse((swept / str(job) / "report.html").read_text(encoding="utf-8"))
        assert {heading.text for heading in page.all("h2")} >= EVERYWHERE


def test_the_command_writes_the_page(swept, tmp_path, capsys):
    path = tmp_path / "page.html"
    assert main([str(swept / "0"), str(swept / "1"), f"output={path}"]) == 0
    result, certainty, last = capsys.readouterr().out.splitlines()
    assert last == str(path)
    page = path.read_text(encoding="utf-8")
    assert result in page and certainty in page
    assert "2 runs, 1 settings" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a folder is needed"),
        (["nowhere"], "nowhere: no such folder"),
        (["--fast", "nowhere"], "--fast: no such folder"),
        (["file=x.html", "nowhere"], "file=x.html: no such folder"),
        ([".", "output="], "at most one FILE"),
        (["."], "holds no run"),
    ],
)
def test_a_wrong_command_is_one_message(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_clients_of_a_regression_are_shown_by_their_error(tmp_path):
    errors = {0: 0.25, 1: 1.5, 2: 0.5}
    clients = [
        {"round": 1, "client_id": k, "status": "trained", "local/loss": 2.0, "local/mae": error}
        for k, error in errors.items()
    ]
    write_run(tmp_path, rows=[{"round": 0}, {"round": 1, "local/loss": 2.0}], clients=clients)
    (section,) = (
        s
        for s in parse(render(Content(find_runs([tmp_path])))).all("section")
        if "Clients up to" in s.text
    )
    assert "Clients up to a mean absolute error" in section.text
    assert "A line further left is better" in section.text
    worst = section.text.partition("with the highest mae")[2]
    assert worst.index("1.5") < worst.index("0.5") < worst.index("0.25")


@pytest.mark.parametrize("optimized", ["val/accuracy", "val/f1", "val/loss"])
def test_clients_are_compared_as_the_runs_are(tmp_path, optimized):
    """By what a user optimizes; a percentage is no share."""
    _, _, metric = optimized.partition("/")
    values = {"accuracy": 93.5, "f1": 0.4, "loss": 2.5}
    row = {f"{view}/{name}": v for view in ("local", "val") for name, v in values.items()}
    clients = [
        {"round": 1, "client_id": k, **{f"local/{name}": v * k for name, v in values.items()}}
        for k in (1, 2)
    ]
    config = {"task": "module", "optimized_metric": optimized}
    write_run(tmp_path, config=config, rows=[{"round": 0}, {"round": 1, **row}], clients=clients)
    text = parse(render(Content(find_runs([tmp_path])))).text
    assert f"local/{metric} over clients" in text
    assert "9350" not in text and "93.5" in text


def section(page, name):
    return next(s for s in page.all("section") if s.attributes["aria-labelledby"] == name)


def test_runs_are_links_to_their_folders(swept, pages, page):
    links = [a.attributes["href"] for a in section(page("sweep"), "runs").all("a")]
    found = {(pages / unquote(link)).resolve() for link in links}
    assert found == {(swept / str(job)).resolve() for job in range(9)}


def test_a_folder_of_any_name_is_a_path(tmp_path):
    folder = write_run(tmp_path / "javascript:x?y#z", rows=accuracies(0.1, 0.5))
    path = tmp_path / "page.html"
    assert main([str(folder), f"output={path}"]) == 0
    (link,) = section(parse(path.read_text(encoding="utf-8")), "runs").all("a")
    assert link.attributes["href"] == "./javascript%3Ax%3Fy%23z/"


def test_clients_are_called_what_they_were_measured_with(page):
    (found,) = (s for s in page("sweep").all("section") if "Clients up to" in s.text)
    assert "local/accuracy or personal/accuracy of every client" in found.text
    for name, own in {"fedavg": "local", "fedprox": "local", "ditto": "personal"}.items():
        assert f"{name} {own}/accuracy" in found.text


@pytest.mark.parametrize(
    ("values", "examples", "share", "shown", "fine"),
    [
        ((0.9, 0.9001, 0.9002), 100, 1.0, "100", True),
        ((0.9, 0.91, 0.92), 100, 1.0, "100", False),
        ((0.9, 0.9001, 0.9002), 100_000, 1.0, "100,000", False),
        ((0.9, 0.91, 0.92), 100, 0.101, "11", True),
        ((0.9, 0.9001, 0.9002), None, 1.0, None, False),
    ],
)
def test_an_interval_finer_than_one_example_is_said(
    tmp_path, values, examples, share, shown, fine
):
    for seed, last in enumerate(values):
        config = {"seed": seed, "eval_examples": share}
        folder = write_run(tmp_path / str(seed), config=config, rows=accuracies(0.1, last))
        if examples:
            facts = {"num_clients": 1, "num_classes": 2, "num_examples": 9, "clients": []}
            facts |= {"num_central_test": examples}
            facts |= {"client_size": {"min": 9, "median": 9, "max": 9}}
            (folder / "partition.json").write_text(json.dumps(facts))
    text = parse(render(Content(find_runs([tmp_path])))).text
    assert (f"Test examples: {shown}" in text) == (shown is not None)
    assert not fine or f"test examples is worth {100 / int(shown):.2g} points" in text
    assert ("is narrower than that" in text) == fine


def test_accuracy_by_class_is_there_once_it_was_evaluated(tmp_path):
    folder = write_run(tmp_path / "run", rows=accuracies(0.1, 0.5))
    assert 'id="classes"' not in render(Content([read_run(folder)]))
    (folder / "evaluation").mkdir()
    lines = ("set,target,0,1,2", "global,0,8,2,0", "global,1,0,5,0", "global,2,0,0,0")
    (folder / "evaluation" / "confusion.csv").write_text("\n".join(lines))
    page = parse(render(Content([read_run(folder)])))
    rows = [row.text for row in section(page, "classes").all("tr")]
    assert rows[1:] == ["global 0 10 80.00 % 1 (2)", "global 1 5 100.00 % -"]


def test_forecasts_are_compared_by_mase_and_drawn_once_they_were_evaluated(tmp_path):
    scores = [{"round": r, "local/mase": 1 - r / 10, "local/loss": 1} for r in range(3)]
    folder = write_run(tmp_path / "run", rows=scores)
    content = Content([read_run(folder)])
    assert (content.criterion.name, content.criterion.rises) == ("local/mase", False)
    (folder / "evaluation").mkdir()
    lines = ["set,place,client,mase,step,true,predicted", "local,best,<b>,0.5,0,21.5,20.5"]
    (folder / "evaluation" / "forecasts.csv").write_text("\n".join([*lines, ""]))
    page = render(content)
    found = section(parse(page), "forecasts")
    assert "<b>, best MASE in local: 0.5" in found.text and "<b>," not in page
    assert "Mean absolute scaled error" in section(parse(page), "curves").text


def test_segmentation_is_compared_by_dice_and_shows_its_picture(tmp_path, caplog):
    scores = [{"round": r, "global/dice": 0.5 + r / 10, "global/loss": 1} for r in range(3)]
    folder = write_run(tmp_path / "run", rows=scores)
    content = Content([read_run(folder)])
    assert (content.criterion.name, content.criterion.rises) == ("global/dice", True)
    assert 'id="segmentation"' not in render(content)
    Image.new("L", (30, 10), 7).save(folder / "masks.png")
    (folder / "masks.csv").write_text("example,client_id,dice\n12,3,0.75\n")
    page = render(content)
    found = section(parse(page), "segmentation")
    assert [row.text for row in found.all("tr")] == ["example client_id dice", "12 3 0.75"]
    picture = next(found.all("image")).attributes
    assert (picture["width"], picture["height"]) == ("30", "10")
    data = base64.b64decode(picture["href"].removeprefix("data:image/png;base64,"))
    assert data == (folder / "masks.png").read_bytes()
    assert "img-src data:" in page
    (folder / "masks.png").write_text("<script>")
    assert 'id="segmentation"' not in render(content)
    assert "masks are not shown" in caplog.text


def test_survival_is_compared_by_concordance_and_drawn_once_it_was_evaluated(tmp_path, caplog):
    scores = [{"round": r, "global/concordance": 0.5 + r / 10, "global/loss": 1} for r in range(3)]
    folder = write_run(tmp_path / "run", rows=scores)
    content = Content([read_run(folder)])
    assert (content.criterion.name, content.criterion.rises) == ("global/concordance", True)
    page = render(content)
    assert 'id="survival"' not in page
    assert "Concordance" in section(parse(page), "curves").text
    (folder / "evaluation").mkdir()
    path = folder / "evaluation" / "survival.csv"
    lines = ["set,risk,time,surviving", "global,low risk,0.0,1.0", "global,low risk,3.5,0.5"]
    path.write_text("\n".join([*lines, ""]))
    found = section(parse(render(Content([read_run(folder)]))), "survival")
    assert "Kaplan-Meier, global" in found.text and "50.00 %" in found.text
    path.write_text("\n".join([*lines, "global,low risk,x,1.0", ""]))
    assert 'id="survival"' not in render(Content([read_run(folder)]))
    assert "survival is not shown" in caplog.text
