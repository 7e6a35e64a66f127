"""Tasks by name and by reference, their arguments, and what is said where something is missing."""

from importlib.util import find_spec

import pytest
from hypothesis import given, strategies as st

from marl_tools.core.errors import ConfigError, MissingExtraError
from marl_tools.envs import find_task, require, task_names


@given(st.sampled_from(task_names()), st.data())
def test_the_packages_own_names_lead_to_the_same_task(name, data):
    task = find_task(name)
    family, versioned = task.id.split("/")
    version = versioned.rsplit("-v", 1)[1]
    prefix = data.draw(st.sampled_from(["", f"{family}.", f"{family}/", f"pettingzoo.{family}."]))
    suffix = data.draw(st.sampled_from(["", f"_v{version}", f"-v{version}"]))
    assert find_task(f"{prefix}{name}{suffix}") is task


@pytest.mark.parametrize(
    ("short", "name"), [("kaz", "knights_archers_zombies"), ("pettingzoo.mpe.simple_tag_v3", "simple_tag")]
)
def test_nicknames_and_the_old_mpe_family_are_understood(short, name):
    assert find_task(short) is find_task(name)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("simple_spred", "Did you mean 'simple_spread'?"),
        ("pistonbal-v6", "Did you mean 'pistonball'?"),
        ("simple_spread_v2", "Did you mean 'simple_spread'?"),
        ("sisl/pistonball", "Did you mean 'pistonball'?"),
        ("qwertzuiop", "Known: adversarial_pursuit, ant_4x2,"),
        ("", "Known: "),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one_or_all(wrong, hint):
    with pytest.raises(ConfigError) as error:
        find_task(wrong)
    assert repr(wrong) in str(error.value)
    assert hint in str(error.value)
    assert "package.module:function" in str(error.value)


def test_a_reference_passes_through_without_being_imported():
    task = find_task("no_such_package.envs:make_arena")
    assert (task.name, task.make_env) == ("no_such_package.envs:make_arena",) * 2
    assert task.kwargs_for() == {}
    require(task)


@pytest.mark.parametrize("text", ["envs:", ":make", "my envs:make", "a:b:c", "1st.envs:make"])
def test_a_malformed_reference_is_refused_with_the_form_it_should_have(text):
    with pytest.raises(ConfigError, match="package\\.module:function"):
        find_task(text)


@pytest.mark.parametrize(
    ("name", "n_agents", "words"),
    [
        ("simple_spread", 0, "at least one agent"),
        ("pistonball", -3, "at least one agent"),
        ("simple_tag", 5, "'simple_tag' has 4 agents"),
        ("pkg.envs:make", 2, "has a size of its own"),
    ],
)
def test_a_team_size_that_the_environment_cannot_have_is_refused(name, n_agents, words):
    with pytest.raises(ConfigError, match=words) as error:
        find_task(name).kwargs_for(n_agents)
    assert str(n_agents) in str(error.value)


def test_asking_for_the_size_that_a_fixed_team_has_is_fine():
    assert find_task("simple_tag").kwargs_for(4) == find_task("simple_tag").kwargs_for()


def test_changing_the_returned_arguments_leaves_the_task_as_it_was():
    find_task("pistonball").kwargs_for()["id"] = "other"
    assert find_task("pistonball").kwargs_for()["id"] == "butterfly/pistonball-v6"


@pytest.mark.parametrize(
    ("name", "package", "command"),
    [
        ("pistonball", "pymunk", 'pip install "marl-tools[butterfly]"'),
        ("multiwalker", "Box2D", 'pip install "marl-tools[sisl]"'),
        ("simple_tag", "mpe2", "pip install marl-tools"),
        ("rps", "pygame", "pip install marl-tools"),
        ("half_cheetah_2x3", "gymnasium_robotics", 'pip install "marl-tools[mamujoco]"'),
        ("adversarial_pursuit", "magent2", 'pip install "marl-tools[magent2]"'),
        ("lle_level_3", "lle", 'pip install "marl-tools[lle]"'),
        ("crazyrl_surround", "momaland", "pip install --no-deps momaland"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, name, package, command):
    monkeypatch.setattr(
        "marl_tools.envs.tasks.task.find_spec",
        lambda module: None if module == package else find_spec(module),
    )
    with pytest.raises(MissingExtraError) as error:
        require(find_task(name))
    assert f"needs {package}," in str(error.value)
    assert str(error.value).endswith(f"Run: {command}")


@pytest.mark.parametrize(
    ("name", "asked", "needed", "cost"),
    [
        ("simple_spread", None, False, None),
        ("simple_spread", None, True, "marl_tools.envs.costs:spread"),
        ("simple_spread", "default", False, "marl_tools.envs.costs:spread"),
        ("simple_spread", "mine:cost", True, "mine:cost"),
        ("pistonball", None, True, None),
        ("pistonball", "mine:cost", False, "mine:cost"),
        ("crossing", "default", True, None),
        ("pkg.envs:make", "default", True, None),
    ],
)
def test_a_tasks_own_cost_is_taken_where_it_is_needed_or_asked_for(name, asked, needed, cost):
    assert find_task(name).cost_for(asked, needed=needed) == cost


@pytest.mark.parametrize(
    ("name", "asked", "needed", "counted"),
    [
        ("simple_spread", None, False, False),
        ("simple_spread", None, True, True),
        ("simple_spread", "default", False, True),
        ("lle_level_3", None, False, True),
        ("crossing", None, False, True),
        ("pistonball", None, False, False),
        ("pistonball", "mine:cost", False, True),
        ("pkg.envs:make", None, False, None),
        ("pkg.envs:make", None, True, True),
    ],
)
def test_whether_costs_are_counted_is_known_but_of_an_env_of_ones_own(name, asked, needed, counted):
    assert find_task(name).counts_costs(asked, needed=needed) is counted


def test_a_cost_of_its_own_is_refused_of_a_task_that_has_none():
    with pytest.raises(ConfigError, match="pistonball has no cost of its own: name a function of yours"):
        find_task("pistonball").cost_for("default", needed=False)
