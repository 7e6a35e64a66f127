"""A small plan, made once for all tests of the report, and a headless browser, if there is one."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from marl_tools.bench.plan import Excluded, Plan
from marl_tools.bench.plan_folder import run_folder, save_plan
from marl_tools.experiment.run import train

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PLAN = Plan(
    name="small",
    settings={
        "native": True,
        "num_envs": 8,
        "rollouts": 16,
        "timesteps": 512,
        "eval_every": 3,
        "eval_episodes": 2,
        "final_policy_eval_episodes": 5,
        "max_risk": 0.05,
    },
    methods={"ippo": {}, "lagrangian": {"constraint": "lagrange"}, "ledger": {"shield": "ledger"}},
    tasks={"crossing": {}, "narrow": {"env": "crossing"}},
    seeds=(0, 1),
    excluded=(Excluded(method="lagrangian", task="narrow", why="its cost is <b>certain</b>"),),
)


@pytest.fixture(scope="session")
def finished_plan(tmp_path_factory):
    """A plan with ten runs that are done, of which one a method was really made. For reading only."""
    folder = tmp_path_factory.mktemp("plan")
    runs = PLAN.runs()
    save_plan(PLAN, runs, folder)
    made = {}
    for place, run in enumerate(runs):
        target = run_folder(folder, run)
        if run.method not in made:
            train(dataclasses.replace(run.config, out=target, video_episodes=1))
            made[run.method] = target
            continue
        shutil.copytree(made[run.method], target, ignore=shutil.ignore_patterns("videos"))
        edit(target / "config.json", lambda config, seed=run.seed: config.update(seed=seed))
        edit(target / "evaluation-trained.json", lambda evaluation, more=place: earn_more(evaluation, more))
    return folder


def edit(path, change):
    """Let ``change`` alter the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def earn_more(evaluation, more):
    row = evaluation["returns"]["mean_over_agents"]
    row.update(mean=row["mean"] + more / 100, interval=[end + more / 100 for end in row["interval"]])


@pytest.fixture
def plan(finished_plan, tmp_path):
    """A copy of it to change."""
    return Path(shutil.copytree(finished_plan, tmp_path / "plan"))


@pytest.fixture
def run(finished_plan, tmp_path):
    """A copy of its shielded run on the crossing, with a film."""
    folder = next(finished_plan.glob("runs/ledger-crossing-s0-*"))
    return Path(shutil.copytree(folder, tmp_path / folder.name))


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Headless Chromium, one for all tests."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("no chromium and chromedriver on this machine")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})

    class Patient(webdriver.Chrome):
        """On a busy machine the driver may return while a page of many megabytes is still being read."""

        def get(self, url):
            super().get(url)
            WebDriverWait(self, 60, 0.05).until(
                lambda page: page.execute_script("return document.readyState === 'complete'")
            )

    browser = Patient(options=options, service=Service(driver))
    browser.set_script_timeout(30)
    yield browser
    browser.quit()
