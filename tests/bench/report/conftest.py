"""A small plan, run once for all tests of the report, and a headless browser, if there is one."""

import dataclasses
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
    tasks={"crossing": {}, "narrow": {"env": "crossing", "num_envs": 4}},
    seeds=(0, 1),
    excluded=(Excluded(method="lagrangian", task="narrow", why="its cost is <b>certain</b>"),),
)


@pytest.fixture(scope="session")
def finished_plan(tmp_path_factory):
    """A plan with ten runs that are done. For reading only."""
    folder = tmp_path_factory.mktemp("plan")
    runs = PLAN.runs()
    save_plan(PLAN, runs, folder)
    for run in runs:
        filmed = run.seed == 0 and run.task == "crossing"
        config = dataclasses.replace(run.config, out=run_folder(folder, run), video_episodes=int(filmed))
        train(config)
    return folder


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

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    browser.set_script_timeout(30)
    yield browser
    browser.quit()
