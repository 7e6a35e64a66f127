"""The serial vector env where something is wrong: envs that break the contract, raise, or fail to open and close."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Text

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.seeding import episode_seed
from marl_tools.core.wrappers import EpisodeRecorder
from marl_tools.vector import SerialVectorEnv
from marl_tools.vector.serial import env_groups
from tests.envs_for_tests import Team
from tests.probe_envs import Kinds, vector
from tests.vector.test_serial import advance, idle

AT = "in copy {} of team_v0, episode seed {}, step {}"


class Faulty(Team):
    """A `Team` in which ``spoil`` may change the results of the second step, in the copies that have it."""

    def __init__(self, spoil=None, **kwargs) -> None:
        super().__init__(**{"n": 2, "max_cycles": 3, **kwargs})
        self.spoil = spoil

    def step(self, actions):
        results = super().step(actions)
        if self.t == 2 and self.spoil:
            self.spoil(self, *results)
        return results


def spoilt_copy(spoil, copy=1, num_envs=3):
    envs = vector(Faulty, num_envs)
    envs.envs[copy].unwrapped.spoil = spoil
    envs.reset(5)
    advance(envs, 1)
    return envs


def explode(env, *results):
    raise ZeroDivisionError("the wheel came off")


def lose_reward(env, obs, rewards, *rest):
    del rewards["agent_1"]


def lose_observation(env, obs, *rest):
    del obs["agent_1"]


def stranger(env, *results):
    env.agents = ["agent_0", "agent_1", "ghost"]


def small_observation(env, obs, *rest):
    obs["agent_1"] = np.zeros(1, np.float32)


def bad_cost(env, obs, rewards, terminations, truncations, infos):
    infos["agent_1"]["cost"] = -1.0


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (explode, ZeroDivisionError, "the wheel came off"),
        (lose_reward, EnvError, "team_v0 gave no reward for live agent 'agent_1'"),
        (lose_observation, EnvError, "team_v0 gave no observation for live agent 'agent_1'"),
        (stranger, EnvError, "agent 'ghost' is not among the possible_agents: agent_0, agent_1"),
        (small_observation, EnvError, r"agent 'agent_1' observes float32 \(1,\), but its .* space is Box"),
        (bad_cost, EnvError, r"infos\['agent_1'\]\['cost'\] must be finite and >= 0, got -1.0"),
    ],
)
def test_whatever_goes_wrong_in_a_step_says_in_which_copy_episode_and_step(spoil, kind, message):
    envs = spoilt_copy(spoil)
    with pytest.raises(kind, match=message) as caught:
        advance(envs, 1)
    assert caught.value.__notes__ == [AT.format(1, episode_seed(5, 1), 2)]


@pytest.mark.parametrize("steps", [0, 3])
def test_what_goes_wrong_in_a_reset_says_so_too(steps):
    class FallsAtReset(Team):
        resets = 0

        def reset(self, seed=None, options=None):
            FallsAtReset.resets += 1
            if FallsAtReset.resets > steps:
                raise ZeroDivisionError("no wheels")
            return super().reset(seed, options)

    envs = vector(FallsAtReset, 2, max_cycles=1)

    def run():
        envs.reset(7)
        advance(envs, 4)

    with pytest.raises(ZeroDivisionError) as caught:
        run()
    # Two copies at the start, then each again after every step of length 1: the fourth reset is that of copy 1.
    copy, episode = (0, 0) if steps == 0 else (1, 3)
    seed = episode_seed(7, episode)
    assert caught.value.__notes__ == [f"in copy {copy} of team_v0, at reset(seed={seed})"]


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([], "has no agents after its reset"),
        (["agent_0", "ghost"], "'ghost' is not among the possible_agents"),
    ],
)
def test_a_reset_that_starts_nobody_or_a_stranger_is_an_error(agents, message):
    class Odd(Team):
        def reset(self, seed=None, options=None):
            results = super().reset(seed, options)
            self.agents = list(agents)
            return results

    with pytest.raises(EnvError, match=message):
        vector(Odd, 1).reset(0)


def test_fractions_for_an_image_are_refused_since_they_would_be_cut_off():
    class Pixels(Team):
        def __init__(self):
            super().__init__(1)
            self._spaces = {"agent_0": Box(0, 255, (2,), np.uint8)}

    with pytest.raises(
        EnvError, match=r"'agent_0' observes float32 \(2,\), but .* Box\(0, 255, \(2,\), uint8\)"
    ):
        vector(Pixels, 1).reset(0)


def test_an_env_that_does_not_name_its_possible_agents_is_refused():
    class Nameless(Team):
        def __init__(self):
            super().__init__(1)
            del self.possible_agents

    for env in (Nameless(), EpisodeRecorder(Nameless())):
        with pytest.raises(ConfigError, match="has no possible_agents: set it"):
            env_groups(env)


@pytest.mark.parametrize("num_envs", [0, -1])
def test_no_copies_are_refused(num_envs):
    with pytest.raises(ConfigError, match=f"num_envs={num_envs}: at least one"):
        SerialVectorEnv(EnvFactory(make_env=Team), num_envs)


class TestMasks:
    @pytest.mark.parametrize("where", ["observation", "info"])
    @pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
    def test_a_mask_belongs_to_the_observation_that_it_came_with(self, kind, where):
        envs = vector(Kinds, 2, kind=kind, mask=where, max_cycles=3)
        twin = Kinds(kind, mask=where)
        step = envs.reset(0)
        for t in [1, 2, 0, 1]:
            group = step.groups["agent"]
            assert group.obs.shape == (2, 2, 2)
            actions = np.stack(
                [group.action_mask[..., :2].argmax(-1), group.action_mask[..., 2:].argmax(-1)], -1
            )
            # Kinds refuses a forbidden action.
            step = envs.step({"agent": actions if kind == "multi_discrete" else group.action_mask.argmax(-1)})
            twin.t = t
            assert (step.groups["agent"].action_mask == twin._allowed()).all()

    def test_an_agent_without_a_mask_in_this_step_may_do_anything(self):
        class Sometimes(Team):
            def _info(self, agents):
                masks = {0: {}, 1: {"action_mask": [0, 1, 0]}, 2: {"action_mask": None}, 3: None}
                return dict.fromkeys(agents, masks[min(self.t, 3)])

        envs = vector(Sometimes, 1, n=1, max_cycles=4)
        assert envs.reset(0).groups["agent"].action_mask is None
        masks = [advance(envs, 1).groups["agent"].action_mask[0, 0].tolist() for _ in range(3)]
        assert masks == [[False, True, False], [True] * 3, [True] * 3]

    def test_the_dead_and_the_unborn_have_masks_that_allow_everything(self):
        class Masked(Team):
            def _info(self, agents):
                return {agent: {"action_mask": [0, 0, 1]} for agent in agents}

        envs = vector(Masked, 1, max_cycles=6, deaths={"agent_0": 1}, births={"agent_2": 2})
        only, every = [False, False, True], [True, True, True]
        assert envs.reset(0).groups["agent"].action_mask[0].tolist() == [only, only, every]
        assert advance(envs, 1).groups["agent"].action_mask[0].tolist() == [every, only, every]
        assert advance(envs, 1).groups["agent"].action_mask[0].tolist() == [every, only, only]
        assert advance(envs, 4).groups["agent"].action_mask[0].tolist() == [only, only, every]

    @pytest.mark.parametrize(
        ("kind", "mask", "message"),
        [
            ("discrete", [0, 0, 0, 0], "mask of agent 'agent_0' allows it no action at all"),
            ("multi_discrete", [1, 1, 0, 0, 0], "mask of agent 'agent_0' allows it no action at all"),
            ("multi_discrete", [0, 0, 1, 1, 1], "mask of agent 'agent_0' allows it no action at all"),
            ("discrete", [1, 1, 1], r"mask of agent 'agent_0' has shape \(3,\), but .* has 4 choices"),
            ("discrete", True, r"mask of agent 'agent_0' has shape \(\), but .* has 4 choices"),
        ],
    )
    def test_a_mask_that_leaves_nothing_or_does_not_fit_is_an_error(self, kind, mask, message):
        class Wrong(Kinds):
            def _info(self, agents):
                return {agent: {"action_mask": mask} for agent in agents}

        with pytest.raises(EnvError, match=message):
            vector(Wrong, 1, kind=kind).reset(0)

    def test_a_mask_over_a_box_is_refused(self):
        class Wrong(Kinds):
            def _info(self, agents):
                return {agent: {"action_mask": [1, 0]} for agent in agents}

        with pytest.raises(ConfigError, match="an action mask makes no sense for Box"):
            vector(Wrong, 1, kind="box").reset(0)


class Counted(Team):
    """Counts how many are open; ``stuck`` ones raise as they close."""

    open = 0

    def __init__(self, stuck=False, **kwargs) -> None:
        super().__init__(**kwargs)
        self.stuck = stuck
        Counted.open += 1

    def close(self):
        Counted.open -= 1
        if self.stuck:
            raise OSError("the window would not close")


@pytest.fixture(autouse=True)
def _nobody_open():
    Counted.open = 0


def recorded(env_index, failing=None, make_env=Counted):
    if env_index == failing:
        raise ZeroDivisionError("no third wheel")
    return EpisodeRecorder(make_env(), env_index=env_index)


def test_a_third_copy_that_cannot_be_made_closes_the_first_two():
    with pytest.raises(ZeroDivisionError, match="no third wheel"):
        SerialVectorEnv(partial(recorded, failing=2), 4)
    assert Counted.open == 0


def test_spaces_that_cannot_be_played_close_all_copies():
    class Talks(Counted):
        def action_space(self, agent):
            return Text(3)

    class MaskedBox(Counted):
        def __init__(self):
            super().__init__()
            masked = Kinds(mask="observation")
            self._spaces, self._action_spaces = masked._spaces, Kinds("box")._action_spaces
            self.possible_agents = masked.possible_agents

    for make_env, message in ((Talks, "Text.* cannot be played"), (MaskedBox, "action mask makes no sense")):
        with pytest.raises(ConfigError, match=message):
            SerialVectorEnv(partial(recorded, make_env=make_env), 2)
        assert Counted.open == 0


def test_closing_midway_returns_what_was_interrupted_and_a_second_time_nothing():
    envs = vector(Counted, 3, max_cycles=4)
    envs.reset(0)
    advance(envs, 6)
    logs = envs.close()
    assert [(log.env_index, log.length, log.interrupted) for log in logs] == [(i, 2, True) for i in range(3)]
    assert (envs.close(), Counted.open) == ([], 0)


def test_closing_before_any_step_logs_nothing():
    envs = vector(Counted, 2)
    assert (envs.close(), Counted.open) == ([], 0)
    envs = vector(Counted, 2)
    envs.reset(0)
    assert (envs.close(), Counted.open) == ([], 0)


def test_a_copy_that_fails_to_close_keeps_neither_the_others_open_nor_the_logs():
    envs = vector(Counted, 3)
    envs.envs[1].unwrapped.stuck = True
    envs.reset(0)
    advance(envs, 1)
    with pytest.raises(OSError, match="the window would not close"):
        envs.close()
    assert Counted.open == 0
    assert [log.env_index for log in envs.close()] == [0, 1, 2]


def test_an_episode_that_ended_in_a_step_that_failed_is_not_lost():
    envs = vector(Faulty, 2, max_cycles=2)
    envs.envs[1].unwrapped.spoil = explode
    envs.reset(0)
    advance(envs, 1)
    with pytest.raises(ZeroDivisionError):
        advance(envs, 1)
    logs = envs.close()
    assert [(log.env_index, log.length, log.interrupted) for log in logs] == [(0, 2, False), (1, 1, True)]


def test_a_reset_in_the_middle_logs_what_it_interrupts_and_numbers_on():
    envs = vector(Team, 2, max_cycles=5)
    envs.reset(0)
    advance(envs, 3)
    step = envs.reset(0)
    assert [(log.length, log.interrupted) for log in step.episodes] == [(3, True)] * 2
    assert not any(array.any() for array in (step.groups["agent"].rewards, step.groups["agent"].truncated))
    assert len(step.groups["agent"].final_env) == 0
    logs = advance(envs, 5).episodes
    assert [(log.seed, log.length, log.t_start) for log in logs] == [
        (episode_seed(0, 2), 5, 6),
        (episode_seed(0, 3), 5, 6),
    ]


def test_whoever_joined_before_a_reset_in_the_middle_waits_for_its_birth_again():
    envs = vector(Team, 1, n=2, births={"agent_1": 2})
    envs.reset(0)
    assert advance(envs, 3).groups["agent"].active.all()
    assert envs.reset(0).groups["agent"].active.tolist() == [[True, False]]


def test_a_step_before_the_reset_or_after_the_end_says_what_is_missing():
    envs = vector(Team, 1)
    with pytest.raises(EnvError, match=r"team_v0 is not running: call reset\(seed\) before step"):
        envs.step(idle(envs))
    envs.reset(0)
    envs.close()
    with pytest.raises(EnvError, match="is not running"):
        envs.step(idle(envs))
    with pytest.raises(EnvError, match="was closed and cannot be reset"):
        envs.reset(0)
