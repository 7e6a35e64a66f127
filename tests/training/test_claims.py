"""What is said beside a certificate: what a shield's bound rests on, or that it is worth nothing."""

import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.envs import crossing
from marl_tools.training.attach import attach_shield, certify_policy


def hasty(observations):
    return dict.fromkeys(observations, 1)


def test_a_bound_of_one_is_said_to_say_nothing_with_what_would_help():
    ignorant = attach_shield(crossing.parallel_env, hasty, learn_episodes=0, support="none")
    certificate = certify_policy(crossing.parallel_env, ignorant, episodes=3)
    bounds = [row["bound"] for row in certificate["horizons"][-1]["subjects"].values() if "bound" in row]
    assert bounds
    assert min(bounds) >= 1.0
    note = certificate["bound_note"]
    assert "holds" not in note
    assert "the bound of car_0, car_1 is 1 and says nothing" in note
    for remedy in (
        "marl-tools coverage",
        "train longer",
        "declare the outcomes",
        "joint_law",
        "--shield-patience",
    ):
        assert remedy in note


def test_a_bound_below_one_holds_under_what_is_said():
    knowing = attach_shield(crossing.parallel_env, hasty, learn_episodes=0, model="exact")
    assert certify_policy(crossing.parallel_env, knowing, episodes=3)["bound_note"].startswith(
        "the bound holds"
    )


@pytest.mark.parametrize("answer", [None, 1, [1, 1]])
def test_a_policy_that_returns_no_mapping_is_told_what_to_return(answer):
    with pytest.raises(ConfigError, match=r"returned .*, not a mapping: return \{agent: action\}"):
        attach_shield(crossing.parallel_env, lambda observations: answer, learn_episodes=1)
