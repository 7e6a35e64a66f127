"""What a run of the report is of."""

import pytest

from marl_tools.bench.report.gather import Reading
from marl_tools.bench.report.methods import is_costed
from tests.bench.plan_folder import finished_run


def reading(folder, **settings):
    """A run whose training episodes have no cost."""
    finished_run(folder, **settings)
    log = folder / "episodes.jsonl"
    log.write_text(log.read_text().replace('"b": 2.0', '"b": 0.0'))
    run = Reading(folder)
    run.refresh()
    return run


@pytest.mark.parametrize(
    ("settings", "costed"),
    [
        ({"env": "simple_spread"}, False),
        ({"env": "simple_spread", "cost": "default"}, True),
        ({"env": "simple_spread", "constraint": "lagrange"}, True),
        ({"env": "crossing"}, True),
        ({"env": "pkg.envs:make"}, True),
    ],
)
def test_a_certificate_does_not_show_that_training_counted_the_tasks_cost(tmp_path, settings, costed):
    assert is_costed(reading(tmp_path, violation=0.25, **settings)) is costed


def test_of_an_env_of_ones_own_nothing_is_known_before_its_first_cost(tmp_path):
    assert not is_costed(reading(tmp_path, env="pkg.envs:make"))
