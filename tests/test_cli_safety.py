"""The command line of shielded runs: what it prints and writes, and that a wrong call is one clear message and code 2."""

import re
import shutil

import pytest

from marl_tools.cli import main
from marl_tools.core.io import load_from_file
from tests.test_cli import call, refused

TINY = [
    "--timesteps",
    "256",
    "--num-envs",
    "4",
    "--rollouts",
    "32",
    "--hidden",
    "8",
    "--learning-epochs",
    "1",
]
SHIELD = ["--native", "--shield", "ledger", "--max-risk", "0.05", "--shield-patience", "0"]
QUICK = ["--final-policy-eval-episodes", "5", "--video-episodes", "0"]


@pytest.fixture(scope="module")
def shielded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "crossing", *TINY, *SHIELD, *QUICK, "--out", str(folder)]) == 0
    return folder


def test_training_ends_with_the_certificate_and_evaluate_writes_a_new_one(shielded, tmp_path, capsys):
    run = shutil.copytree(shielded, tmp_path / "run")
    code, out, _ = call(["evaluate", run, "--episodes", "7"], capsys)
    assert code == 0
    assert "violation probability, from 7 episodes" in out
    assert re.search(r"team .* 0\.1000", out)
    assert "the bound holds" in out.replace("\n", " ")
    assert load_from_file(run, "certificate.json")["episodes"] == 7
    assert load_from_file(run, "certificate-1.json") == load_from_file(shielded, "certificate.json")
    assert load_from_file(shielded, "certificate.json")["episodes"] == 5


def test_explain_shows_decision_prices_and_counts_of_each_agent(shielded, capsys):
    code, out, _ = call(["explain", shielded, 0, 2], capsys)
    assert code == 0
    for word in ("car_0", "car_1", "proposed", "executed", "Q proposed", "V", "price", "slack", "rule"):
        assert word in out
    for word in ("draws proposed", "draws executed", "tried unknown"):
        assert word in out
    assert "counted from 1" in refused(["explain", shielded, 0, 0], capsys)
    ended = re.search(r"ended before this step: (car_\d)", "".join(explanations(shielded, capsys)))
    assert ended, "one of two cars arrives first"
    assert "ends after" in refused(["explain", shielded, 0, 999], capsys)
    assert "EPISODE" in refused(["explain", shielded, -1, 1], capsys)


def test_a_run_that_goes_on_compares_with_random_play_and_keeps_the_certificate_of_the_team_before(
    shielded, tmp_path, capsys
):
    run = shutil.copytree(shielded, tmp_path / "run")
    code, out, _ = call(["train", "--resume", run, "--timesteps", "384"], capsys)
    assert code == 0
    assert re.search("random.*trained", out)
    assert load_from_file(run, "certificate-1.json") == load_from_file(shielded, "certificate.json")
    assert (run / "certificate.json").exists()


def explanations(run, capsys):
    """What is explained of each step of the first ten episodes."""
    for episode in range(10):
        for step in range(1, 41):
            code, out, _ = call(["explain", run, episode, step], capsys)
            if code:
                break
            yield out
            if "ended" in out:
                return


def test_coverage_prints_and_writes_what_the_shield_knows(shielded, tmp_path, capsys):
    run = shutil.copytree(shielded, tmp_path / "run")
    code, out, _ = call(["coverage", run], capsys)
    assert code == 0
    report = load_from_file(run, "coverage.json")
    assert report["rows"] == 220
    assert f"{report['rows_visited']:.1%}" in out
    assert str(report["visits_missing"]) in out
    assert "car_1" in out


def test_a_shielded_team_is_filmed_alone_and_side_by_side(shielded, tmp_path, capsys):
    for more in ([], ["--grid", "1x2"]):
        code, out, _ = call(["record", shielded, "--out", tmp_path, *more], capsys)
        assert (code, out.count(".mp4")) == (0, 1)


def test_what_only_a_shield_can_answer_is_refused_without_one(tmp_path, capsys):
    run = tmp_path / "run"
    assert (
        main(
            [
                "train",
                "crossing",
                *TINY,
                "--final-policy-eval-episodes",
                "0",
                "--video-episodes",
                "0",
                "--out",
                str(run),
            ]
        )
        == 0
    )
    for command in (["explain", run, 0, 1], ["coverage", run]):
        assert "has no shield: train with --shield" in refused(command, capsys)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["crossing", *SHIELD, "--max-risk", "1.5"],
            r"crossing: max_risk=1\.5: must be a number above 0 and below 1",
        ),
        (["crossing", *SHIELD, "--shield-horizon", "99"], "horizon=99.*crossing.*set horizon=40"),
        (["crossing", *SHIELD, "--shield-opponent-mode", "none"], "shield-opponent-mode"),
        (["simple_spread", "--shield", "ledger"], r"simple_spread has no state_key\(\)"),
        (
            ["tests.keyed_envs:Costless", "--shield", "ledger"],
            "rink_v0 gives agent 'agent_1' no cost.*--cost",
        ),
        (["simple_push", "--constraint", "pid"], "simple_push gives agent 'adversary_0' no cost.*--cost"),
        (["tests.keyed_envs:Endless", "--shield", "ledger"], "rink_v0 has no episode cap.*--cap N"),
        (["tests.keyed_envs:Rink", "--shield", "ledger", "--shield-model", "exact"], "rink_v0.*'learned'"),
    ],
)
def test_a_shield_that_cannot_be_is_one_message_and_code_2(args, message, tmp_path, capsys):
    text = refused(["train", *args, *TINY, *QUICK, "--out", tmp_path / "run"], capsys)
    assert re.search(message, text)


def test_models_of_another_env_are_refused(shielded, tmp_path, capsys):
    run = shutil.copytree(shielded, tmp_path / "run")
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"env_kwargs": {}', '"env_kwargs": {"n_agents": 3}'))
    message = refused(["evaluate", run], capsys)
    assert re.search(
        r"crossing with other agents or spaces: .*car_0, car_1, car_2 .*Use the env settings", message
    )
    (run / "config.json").write_text(text.replace('"env_kwargs": {}', '"env_kwargs": {"slip": 0.0}'))
    assert "crossing" in refused(["evaluate", run], capsys)
