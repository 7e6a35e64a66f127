import dataclasses
import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest

from marl_tools.bench.jobs import keep_failure
from marl_tools.bench.report import write_report
from marl_tools.bench.report.clips import Film, find_clips
from marl_tools.bench.report.gather import open_folder
from marl_tools.cli import main
from marl_tools.core.errors import ConfigError
from tests.bench.report.conftest import edit
from tests.test_project import MODULES, imported_packages

HOSTILE = "</script><img src=x onerror=alert(1)>"


def page_of(folder, **how):
    return write_report(folder, **how).read_text("utf-8")


def own_part(page):
    """Without the scripts at the end: plotly's says anything."""
    return page[: page.index("</main>")]


def words(page):
    """What the page says, without tags."""
    return unescape(re.sub(r"<[^>]+>", " ", own_part(page)))


def specs(page):
    end = page[page.index("</main>") :]
    text = re.search(r'<script type="application/json" class="specs">(.*?)</script>', end)
    assert text is not None
    return json.loads(text[1])


def test_a_run_says_what_it_earned_how_it_violated_and_what_its_shield_bounds(run):
    page = page_of(run)
    said = words(page)
    certificate = json.loads((run / "certificate.json").read_text())
    assert "ledger shield" in said
    assert "The trained team earns" in said
    assert f"of {certificate['episodes']} evaluation episodes had a violation" in said
    assert certificate["bound_note"] in said
    assert certificate["assumes"][0] in said
    assert "While training," in said
    figures = specs(page)
    assert {"returns", "costs", "violation-rate", "interventions", "policy-loss", "entropy"} <= set(figures)
    assert {trace["name"] for trace in figures["returns"]["traces"]} >= {"car_0", "car_1", "mean over agents"}
    assert [level["label"] for level in figures["returns"]["levels"]] == ["random play"]


def test_a_lagrangian_shows_its_multipliers_and_ippo_neither_these_nor_a_shield(finished_plan, tmp_path):
    lagrangian, ippo = (
        set(
            specs(
                page_of(next(finished_plan.glob(f"runs/{name}-crossing-s0-*")), out=tmp_path / f"{name}.html")
            )
        )
        for name in ("lagrangian", "ippo")
    )
    assert {"multipliers", "cost-seen"} <= lagrangian
    assert not {"multipliers", "interventions"} & ippo


def test_a_plan_compares_methods_names_what_is_left_out_and_lists_every_run(plan):
    page = page_of(plan)
    said = words(page)
    assert "10 of 10" in said
    for task in ("crossing", "narrow"):
        assert f"On {task} the trained teams’ return is" in said
    assert "no claim of a difference is made" in said  # two seeds
    assert "its cost is <b>certain</b>" in said
    assert "<b>certain</b>" not in page
    for folder in (plan / "runs").iterdir():
        assert folder.name in said
    figures = specs(page)
    assert {"crossing-return", "crossing-violation", "crossing-learning", "profile"} <= set(figures)
    colors = {trace["name"]: trace["color"] for trace in figures["crossing-learning"]["traces"]}
    assert colors == {"ippo": 0, "lagrangian": 1, "ledger": 2}


def test_the_same_method_has_the_same_colour_in_every_figure(finished_plan, tmp_path):
    figures = specs(page_of(finished_plan, out=tmp_path / "page.html"))
    for key, spec in figures.items():
        for trace in spec["traces"] if key != "profile" and not key.startswith("improvement") else ():
            method = trace["name"].split(",")[0]
            assert trace["color"] == {"ippo": 0, "lagrangian": 1, "ledger": 2}[method], key


def test_a_page_names_no_address_to_fetch_from(run):
    own = own_part(page_of(run))
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", own)
    assert "default-src 'none'" in unescape(own)


def test_names_from_a_folder_never_become_code(plan):
    run = next((plan / "runs").glob("ledger-crossing-s0-*"))
    for name in ("episodes.jsonl", "evaluation-trained.json", "certificate.json"):
        path = run / name
        path.write_text(path.read_text().replace("car_0", HOSTILE))
    edit(run / "versions.json", lambda versions: versions.update({HOSTILE: HOSTILE}))
    (run / "error.json").write_text(json.dumps({"error": HOSTILE, "message": HOSTILE}))
    (run / "done.json").unlink()
    edit(plan / "plan.json", lambda content: content.update(name=HOSTILE))
    for folder in (plan, run):
        page = page_of(folder)
        assert "<img src=x" not in page
        assert HOSTILE in words(page)


def test_nothing_that_a_folder_names_is_imported(run, tmp_path, monkeypatch):
    (tmp_path / "booby.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    edit(run / "config.json", lambda config: config.update(env="booby:make", cost="booby:cost"))
    assert "booby" in words(page_of(run))


def test_a_torn_last_line_is_passed_over_in_silence(run):
    whole = open_folder(run)
    for name in ("episodes.jsonl", "updates.jsonl"):
        with open(run / name, "a") as file:
            file.write('{"update": 99, "fra')
    torn = open_folder(run)
    assert torn.problems == []
    assert torn.training.episodes == whole.training.episodes
    assert len(torn.updates) == len(whole.updates)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[1]"),
        ("config.json", '{"env": "crossing", "num_envs": "many"}'),
        ("episodes.jsonl", '{"no": "episode"}\n'),
        ("updates.jsonl", "not json\n"),
        ("certificate.json", "\x00"),
        ("evaluation-trained.json", "3"),
        ("versions.json", "null"),
    ],
)
def test_a_damaged_file_is_named_on_the_page_and_the_rest_is_shown(run, name, content):
    (run / name).write_text(content)
    said = words(page_of(run))
    assert "What went wrong" in said
    assert name in said or "num_envs" in said


def nonsense(value):
    """JSON of the same outline, with other values."""
    if isinstance(value, dict):
        return {key: nonsense(part) for key, part in value.items()}
    return [] if isinstance(value, str) else "x" if isinstance(value, int | float) else {"a": None}


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "certificate.json",
        "evaluation-random.json",
        "evaluation-trained.json",
        "versions.json",
        "plan.json",
    ],
)
def test_values_of_other_kinds_than_a_run_writes_never_stop_the_page(plan, name):
    changes = [nonsense, dict.fromkeys, lambda content: {}]
    places = sorted(plan.glob("runs/*-s0-*/" + name)) if name != "plan.json" else [plan / name] * 3
    for number, path in enumerate(places):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(changes[number % 3](content)))
        if name == "plan.json" or number == len(places) - 1:
            assert "All runs" in words(page_of(plan, videos="none"))
            path.write_text(json.dumps(content))


def test_infinities_in_a_file_become_gaps(run):
    path = run / "certificate.json"
    path.write_text(re.sub(r'"estimate": [\d.]+', '"estimate": NaN', path.read_text()))
    path = run / "updates.jsonl"
    path.write_text(re.sub(r'"loss": -?[\d.e-]+', '"loss": Infinity', path.read_text()))
    assert "NaN" not in json.dumps(specs(page_of(run)))


def test_a_failed_run_says_why_and_how_to_go_on(plan):
    run = next((plan / "runs").glob("ippo-crossing-s1-*"))
    (run / "done.json").unlink()
    (run / "error.json").write_text(json.dumps({"error": "NonFiniteError", "message": "NaN in the loss"}))
    said = words(page_of(plan))
    assert "What went wrong" in said
    assert "NonFiniteError: NaN in the loss" in said
    assert "lower learning rate" in said
    # The plan's command, also on the run's own page; a run that belongs to none goes on by itself.
    alone = shutil.copytree(run, plan.parent / "alone")
    for folder in (plan, run):
        said = words(page_of(folder))
        assert f"marl-tools bench PLAN --out {plan}" in said
        assert "train --resume" not in said
    assert f"marl-tools train --resume {alone}" in words(page_of(alone))


def test_a_damaged_run_is_run_again_by_its_plan_and_one_alone_is_trained_anew(plan):
    run = next((plan / "runs").glob("ippo-crossing-s1-*"))
    (run / "config.json").write_text("{")
    alone = shutil.copytree(run, plan.parent / "alone")
    said = words(page_of(run))
    assert f"otherwise move {run} away" in said
    assert f"marl-tools bench PLAN --out {plan}" in said
    assert "otherwise train anew in another --out" in words(page_of(alone))


def test_a_run_that_failed_before_it_began_is_no_damaged_one_and_is_begun_by_its_plan(plan):
    run = next((plan / "runs").glob("ippo-crossing-s1-*"))
    shutil.rmtree(run)
    keep_failure(ValueError("the env cannot be made"), run)
    said = words(page_of(plan))
    assert "ValueError: the env cannot be made" in said
    assert "marl-tools bench" in said
    assert f"--resume {run}" not in said
    assert "no config.json" not in said


def test_runs_that_have_not_begun_are_listed_as_such(plan):
    shutil.rmtree(next((plan / "runs").glob("ippo-crossing-s1-*")))
    said = words(page_of(plan))
    assert "9 of 10" in said
    assert "1 not started" in said


@pytest.mark.parametrize("run_id", ["../../elsewhere", "/etc", "..", "", 3, None])
def test_a_plan_leads_to_no_folder_but_its_own(plan, run_id):
    outside = plan.parent / "elsewhere"
    shutil.copytree(next((plan / "runs").iterdir()), outside)
    edit(plan / "plan.json", lambda content: content["runs"][0].update(id=run_id))
    collection = open_folder(plan)
    assert all(plan in run.folder.parents for run in collection.runs.values())
    assert "which is no name" in " ".join(collection.problems)
    assert "All runs" in words(page_of(plan, videos="none"))


def test_run_folders_without_a_plan_are_listed_and_not_compared(plan):
    (plan / "plan.json").unlink()
    said = words(page_of(plan))
    assert "listed, not compared" in said
    assert "ledger shield" in said


def test_films_are_embedded_linked_or_left_out(run, tmp_path):
    film = find_clips(run)[0]
    embedded, linked, none = (
        page_of(run, videos=how, out=tmp_path / f"{how}.html") for how in ("embed", "link", "none")
    )
    assert "data:video/mp4;base64," in embedded
    assert f'src="{run.name}/videos/{film.path.name}"' in linked
    assert "1 film is linked" in linked
    assert "<video" not in none


def test_films_beyond_the_budget_are_linked(run):
    clips = find_clips(run) * 3
    film = Film("embed", run / "report.html", budget=2 * clips[0].size)
    sources = [film.source(clip) for clip in clips]
    assert [source.startswith("data:") for source in sources] == [True, True, False]
    assert film.linked == 1


def test_no_line_has_more_than_its_points_however_long_the_run(run):
    line = (run / "updates.jsonl").read_text().splitlines()[-1]
    row = json.loads(line)
    with open(run / "updates.jsonl", "a") as file:
        for number in range(5000):
            file.write(json.dumps({**row, "update": number, "frames": 2000 + 128 * number}) + "\n")
    figures = specs(page_of(run))
    assert max(len(trace["y"]) for spec in figures.values() for trace in spec["traces"]) <= 256


def test_every_figure_and_film_says_in_words_what_it_shows(plan):
    own = own_part(page_of(plan))
    plots = re.findall(r'<div class="plot" role="img" aria-label="([^"]*)"', own)
    assert len(plots) > 50
    assert all(len(alt) > 30 for alt in plots)
    assert len(re.findall(r"<video[^>]*aria-label=", own)) == own.count("<video") > 0


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_a_folder_without_run_or_plan_is_refused(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=folder):
        write_report(tmp_path / folder)


def test_the_command_writes_the_page_where_it_is_told(run, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["report", str(run), "--out", str(page), "--videos", "none"]) == 0
    assert str(page) in capsys.readouterr().out
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("flags", [["--port", "1"], ["--host", "0.0.0.0"], ["--serve", "--out", "x.html"]])
def test_flags_that_do_not_go_together_are_refused(run, flags, capsys):
    assert main(["report", str(run), *flags]) == 2
    assert flags[0] in capsys.readouterr().err or "--serve" in flags


def test_training_ends_with_the_page_and_a_failure_of_that_is_a_warning(tmp_path, monkeypatch, capsys):
    flags = ["--native", "--timesteps", "64", "--num-envs", "4", "--rollouts", "8"]
    flags += ["--final-policy-eval-episodes", "2", "--video-episodes", "0"]
    assert main(["train", "crossing", *flags, "--out", str(tmp_path / "one")]) == 0
    assert (tmp_path / "one" / "report.html").exists()
    assert "report.html" in capsys.readouterr().out
    monkeypatch.setattr("marl_tools.bench.report.command.write_report", refuse)
    assert main(["train", "crossing", *flags, "--out", str(tmp_path / "two")]) == 0
    assert (tmp_path / "two" / "done.json").exists()


def refuse(folder):
    raise OSError(f"no room for the page of {Path(folder).name}")


def test_a_report_changes_nothing_else_in_the_folder(run):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    write_report(run)
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert after.pop(run / "report.html")
    assert after == before


def test_reading_on_gives_what_reading_anew_gives(run):
    episodes = (run / "episodes.jsonl").read_bytes()
    cut = len(episodes) // 2
    (run / "episodes.jsonl").write_bytes(episodes[:cut])
    reading = open_folder(run)
    with open(run / "episodes.jsonl", "ab") as file:
        file.write(episodes[cut:])
    assert reading.refresh()
    assert not reading.refresh()
    anew = open_folder(run)
    assert reading.training.episodes == anew.training.episodes
    assert reading.curves.mean("return").y.tolist() == pytest.approx(
        anew.curves.mean("return").y.tolist(), nan_ok=True
    )


def test_a_log_that_was_rewound_is_read_from_its_beginning(run):
    reading = open_folder(run)
    rows = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (run / "episodes.jsonl").write_bytes(b"".join(rows[:5]))
    assert reading.refresh()
    assert reading.training.episodes + len(reading.curves.evaluations) <= 5
    assert dataclasses.is_dataclass(reading.summary)


@pytest.mark.parametrize("package", ["plotly", "jinja2", "markupsafe"])
def test_what_draws_the_page_is_known_to_the_page_alone(package):
    importers = [path.name for path in MODULES if package in imported_packages(path)]
    assert importers == ["page.py"]
