"""The page in a real browser: what is drawn, played, filtered and printed."""

import base64
import json
import shutil
from pathlib import Path

import pytest

from marl_tools.bench.report import write_report

DRAWN = "return [...document.querySelectorAll('.figure[data-drawn]')].map(f => [f.dataset.figure, f.querySelectorAll('.scatterlayer path').length])"
SHOW_ALL = """
for (const fold of document.querySelectorAll('details')) fold.open = true;
const figures = [...document.querySelectorAll('.figure')];
const done = arguments[arguments.length - 1];
(async () => {
  for (const figure of figures) {
    figure.scrollIntoView();
    while (!figure.dataset.drawn) await new Promise(requestAnimationFrame);
  }
  done(figures.length);
})();
"""


@pytest.fixture(scope="module")
def page_of_plan(finished_plan, tmp_path_factory):
    return write_report(finished_plan, out=tmp_path_factory.mktemp("page") / "plan.html")


@pytest.fixture
def page(browser, page_of_plan):
    """The plan's page, at the width of a desk."""
    resize(browser, 1280)
    browser.get(page_of_plan.as_uri())
    browser.get_log("browser")
    return browser


def resize(browser, width):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )


def widest(browser):
    return browser.execute_script("return document.documentElement.scrollWidth")


def shown(browser):
    return browser.execute_script(
        "return [...document.querySelectorAll('tbody.run')].filter(r => !r.hidden).map(r => r.dataset.id)"
    )


def complaints(browser):
    return [entry["message"] for entry in browser.get_log("browser")]


def until(browser, script):
    """Wait for a script to return something true."""
    wait = (
        "const done = arguments[arguments.length - 1]; const look = () => { const v = (() => {"
        + script
        + "})(); v ? done(v) : setTimeout(look, 30); }; look();"
    )
    return browser.execute_async_script(wait)


def choose(browser, name, value):
    browser.execute_script(
        "const field = document.querySelector(`.filters [name=${arguments[0]}]`); field.value = arguments[1];"
        "field.dispatchEvent(new Event('input', {bubbles: true}));",
        name,
        value,
    )


def test_every_figure_of_a_run_is_drawn_and_nothing_is_fetched_or_complained_about(browser, run):
    resize(browser, 1280)
    browser.get(write_report(run).as_uri())
    count = browser.execute_async_script(SHOW_ALL)
    drawn = dict(browser.execute_script(DRAWN))
    assert len(drawn) == count >= 14
    assert all(paths > 0 for paths in drawn.values()), drawn
    assert drawn["returns"] >= 6  # three lines, two bands, evaluations
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []
    assert complaints(browser) == []


def test_figures_out_of_sight_wait(page):
    figures = page.execute_script("return document.querySelectorAll('.figure').length")
    assert len(page.execute_script(DRAWN)) < figures


@pytest.mark.parametrize("videos", ["embed", "link"])
def test_films_play_in_place(browser, run, videos):
    browser.get(write_report(run, videos=videos).as_uri())
    browser.execute_script("document.querySelector('video').scrollIntoView({block: 'center'})")
    assert until(
        browser, "const v = document.querySelector('video'); return v.currentTime > 0.2 && v.videoWidth"
    )
    assert complaints(browser) == []


def test_a_film_that_was_stopped_stays_so(browser, run):
    browser.get(write_report(run).as_uri())
    browser.execute_script("document.querySelector('video').scrollIntoView({block: 'center'})")
    until(browser, "return document.querySelector('video').currentTime > 0.1")
    browser.execute_script("document.querySelector('video').pause()")
    until(browser, "return document.querySelector('video').dataset.stopped")
    browser.execute_script("scrollTo(0, 0)")
    browser.execute_script("document.querySelector('video').scrollIntoView({block: 'center'})")
    assert browser.execute_script("return document.querySelector('video').paused")


def test_a_plan_draws_its_methods_and_complains_of_nothing(page):
    count = page.execute_async_script(SHOW_ALL)
    drawn = dict(page.execute_script(DRAWN))
    assert len(drawn) == count
    assert all(paths > 0 for paths in drawn.values()), drawn
    assert complaints(page) == []


def test_runs_are_filtered_by_method_task_state_and_text_together(page):
    assert len(shown(page)) == 10
    choose(page, "method", "ledger")
    assert len(shown(page)) == 4
    choose(page, "task", "crossing")
    choose(page, "text", "S1")
    assert len(shown(page)) == 1
    assert shown(page)[0].startswith("ledger-crossing-s1-")
    assert page.execute_script("return document.getElementById('count').textContent") == "1 of 10 runs"
    choose(page, "state", "failed")
    assert shown(page) == []


def test_runs_are_sorted_by_a_column_up_and_down(page):
    values = "return [...document.querySelectorAll('tbody.run')].map(r => Number(r.dataset.return))"
    button = "document.querySelector('th[data-sort=return] button').click()"
    page.execute_script(button)
    up = page.execute_script(values)
    assert up == sorted(up)
    page.execute_script(button)
    assert page.execute_script(values) == sorted(up, reverse=True)
    state = "return document.querySelector('th[data-sort=return]').getAttribute('aria-sort')"
    assert page.execute_script(state) == "descending"


def test_a_run_opens_in_place_by_the_keyboard_with_figures_of_its_own(page):
    from selenium.webdriver.common.keys import Keys

    button = page.find_element("css selector", "tbody.run[data-method=ledger] button.open")
    assert page.execute_script("return document.querySelectorAll('.place .figure').length") == 0
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-expanded") == "true"
    page.execute_script("document.querySelector('.place .figure').scrollIntoView()")
    assert until(
        page, "return document.querySelectorAll('.place .figure[data-drawn] .scatterlayer path').length > 3"
    )
    button.send_keys(Keys.ENTER)
    assert page.execute_script("return document.querySelector('tr.detail').hidden")
    assert complaints(page) == []


def test_an_address_with_the_place_of_a_run_opens_it(browser, page_of_plan):
    browser.get("about:blank")
    browser.get(page_of_plan.as_uri() + "#run-3")
    assert until(browser, "return document.querySelector('#run-3 .place .figure')")


def test_a_phone_needs_no_sideways_scrolling(page):
    resize(page, 390)
    page.execute_script("document.querySelector('tbody.run button.open').click()")
    page.execute_async_script(SHOW_ALL)
    assert widest(page) == 390


def test_dark_and_light_follow_the_reader_and_so_do_figures(page):
    look = (
        "return [getComputedStyle(document.body).backgroundColor, "
        "document.querySelector('.xtick text').style.fill]"
    )
    page.execute_async_script(SHOW_ALL)
    light = page.execute_script(look)
    dark_mode = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", dark_mode)
    try:
        until(page, "return document.querySelector('.xtick text').style.fill !== '" + light[1] + "'")
        dark = page.execute_script(look)
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert dark[0] != light[0]


def test_print_shows_every_figure_within_the_paper(page):
    document = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert document.startswith(b"%PDF")
    resize(page, 700)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        page.execute_script("dispatchEvent(new Event('beforeprint'))")
        figures = page.execute_script("return document.querySelectorAll('.figure').length")
        visible = page.execute_script(
            "return [...document.querySelectorAll('.figure')].filter(f => f.clientWidth && f.dataset.drawn).length"
        )
        folded = page.execute_script("return document.querySelectorAll('details:not([open]) .figure').length")
        wide = page.execute_script(
            "return [...document.querySelectorAll('.figure[data-drawn]')]"
            ".filter(f => f.querySelector('svg').getBoundingClientRect().right > f.getBoundingClientRect().right + 1).length"
        )
        filters = page.execute_script("return getComputedStyle(document.querySelector('.filters')).display")
    finally:
        page.execute_script("dispatchEvent(new Event('afterprint'))")
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert visible == figures - folded
    assert wide == 0
    assert filters == "none"


def test_names_of_a_stranger_are_shown_as_they_are_written(browser, run):
    hostile = "<img src=x onerror=window.caught=1>"
    for name in ("episodes.jsonl", "evaluation-trained.json", "certificate.json"):
        path = run / name
        path.write_text(path.read_text().replace("car_0", hostile))
    browser.get(write_report(run).as_uri())
    browser.execute_async_script(SHOW_ALL)
    assert browser.execute_script("return window.caught") is None
    assert hostile in browser.execute_script(
        "return [...document.querySelectorAll('.legendtext')].map(t => t.textContent)"
    )


def test_a_hundred_runs_and_more_are_one_list(browser, finished_plan, tmp_path):
    plan = json.loads((finished_plan / "plan.json").read_text())
    folder = tmp_path / "many"
    for number in range(12):
        for row in plan["runs"]:
            shutil.copytree(finished_plan / "runs" / row["id"], folder / "runs" / f"{row['id']}-{number}")
    page = write_report(folder, videos="none")
    assert Path(page).stat().st_size < 15e6
    browser.get(page.as_uri())
    assert len(shown(browser)) == 120
    choose(browser, "text", "s1 corridor ledger")
    choose(browser, "text", "ledger-narrow s1 -7")
    assert len(shown(browser)) == 1
    assert complaints(browser) == []
