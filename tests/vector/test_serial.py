"""The serial vector env against the same envs stepped by hand, and against lifetimes worked out by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from marl_tools.core.seeding import episode_seed
from marl_tools.core.wrappers import EpisodeRecorder
from marl_tools.vector import SerialVectorEnv
from tests.envs_for_tests import Team, real_env
from tests.probe_envs import vector


class ByHand:
    """One copy without any of our code: who acts next on what, and what the last step meant for whom."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int) -> None:
        self.obs, _ = self.env.reset(seed=seed)
        self.live, self.gone = set(self.env.agents), set()

    def sees(self, agent: str, observations: dict[str, Any]) -> np.ndarray:
        """An observation as a network takes it: float32 or uint8, an index one-hot."""
        space, observation = self.env.observation_space(agent), observations[agent]
        if isinstance(space, Discrete):
            return np.eye(space.n)[observation - space.start]
        return observation if space.dtype == np.uint8 else observation.astype(np.float32)

    def step(self, actions: dict[str, Any]) -> None:
        self.final = {}
        before = self.obs
        self.obs, self.rewards, terminations, truncations, _ = self.env.step(actions)
        for agent in sorted(self.live):
            if terminations[agent] or truncations[agent] or agent not in self.env.agents:
                self.final[agent] = self.obs.get(agent, before[agent])
        self.terminated = {agent for agent in self.live if terminations[agent]}
        self.gone |= self.final.keys()
        self.live = {agent for agent in {*self.live, *self.env.agents} if agent not in self.gone}


def random_actions(envs: SerialVectorEnv, rng: np.random.Generator) -> dict[str, np.ndarray]:
    actions = {}
    for group in envs.groups:
        shape = (envs.num_envs, len(group.agents), *group.spaces.action_shape)
        if group.spaces.action_type == "continuous":
            actions[group.name] = rng.uniform(-1, 1, shape).astype(np.float32)
        else:
            actions[group.name] = rng.integers(group.spaces.action_dim, size=shape)
    return actions


def rows(envs: SerialVectorEnv, step: Any, copy: int) -> dict[str, tuple[Any, int]]:
    """Of each agent its group's arrays and its row in them."""
    return {
        agent: (step.groups[group.name], row)
        for group in envs.groups
        for row, agent in enumerate(group.agents)
    }


def follow(make_env: Any, steps: int, *, num_envs: int = 2, seed: int = 3, twin: Any = None) -> list[Any]:
    """Play random actions, compare every array after every step, and return the episodes' logs.

    ``twin`` makes the env that is stepped by hand, where that is not the same.
    """
    envs = SerialVectorEnv(lambda env_index: EpisodeRecorder(make_env(), env_index=env_index), num_envs)
    twins = [ByHand((twin or make_env)()) for _ in range(num_envs)]
    started = [0] * num_envs

    def start(copy: int) -> None:
        twins[copy].reset(episode_seed(seed, started[copy] * num_envs + copy))
        started[copy] += 1

    step = envs.reset(seed)
    for copy in range(num_envs):
        start(copy)
    rng, logs = np.random.default_rng(seed), []
    for _ in range(steps):
        for copy, hand in enumerate(twins):
            acts = {agent: group.active[copy, row] for agent, (group, row) in rows(envs, step, copy).items()}
            assert {agent for agent, active in acts.items() if active} == hand.live
            for agent in hand.live:
                group, row = rows(envs, step, copy)[agent]
                np.testing.assert_array_equal(group.obs[copy, row], hand.sees(agent, hand.obs))
        actions = random_actions(envs, rng)
        step = envs.step(actions)
        finals = [{} for _ in twins]
        for group in envs.groups:
            arrays = step.groups[group.name]
            for k, (copy, row) in enumerate(zip(arrays.final_env, arrays.final_agent, strict=True)):
                finals[copy][group.agents[row]] = arrays.final_obs[k]
        for copy, hand in enumerate(twins):
            acted = set(hand.live)
            joint = {
                agent: group.spaces.to_env(actions[group.name][copy, row][None])[0]
                for group in envs.groups
                for row, agent in enumerate(group.agents)
                if agent in acted
            }
            hand.step(joint)
            for agent, (arrays, row) in rows(envs, step, copy).items():
                ended = agent in hand.final
                assert arrays.rewards[copy, row] == (hand.rewards[agent] if agent in acted else 0.0)
                assert arrays.terminated[copy, row] == (agent in hand.terminated)
                assert arrays.truncated[copy, row] == (ended and agent not in hand.terminated)
            assert finals[copy].keys() == hand.final.keys()
            for agent, observation in finals[copy].items():
                np.testing.assert_array_equal(observation, hand.sees(agent, hand.final))
            if not hand.live:
                start(copy)
        logs += step.episodes
    assert envs.episodes_started == sum(started)
    logs += envs.close()
    for hand in twins:
        hand.env.close()
    return logs


@pytest.mark.parametrize(
    ("name", "kwargs", "steps"),
    [
        ("simple_spread", {}, 60),
        ("simple_spread", {"continuous_actions": True}, 30),
        ("simple_tag", {}, 60),
        ("simple_speaker_listener", {}, 60),
        ("multiwalker", {"max_cycles": 40}, 90),
        ("pistonball", {"max_cycles": 4}, 6),
        ("pursuit", {"max_cycles": 4}, 6),
        ("cooperative_pong", {"max_cycles": 4}, 6),
        ("rps", {}, 20),
    ],
)
def test_real_envs_give_the_arrays_that_stepping_by_hand_gives(name, kwargs, steps):
    logs = follow(partial(real_env, name, **kwargs), steps)
    assert sum(not log.interrupted for log in logs) >= 2, "no episode ended: autoreset was not seen"


def test_agents_of_a_real_env_that_die_midway_give_the_arrays_that_stepping_by_hand_gives():
    logs = follow(partial(real_env, "knights_archers_zombies"), 300)
    assert any(len(set(log.lengths.values())) > 1 for log in logs), "nobody died before the others"


LIVES = {
    "one length": {"max_cycles": 4},
    "deaths at different times": {"max_cycles": 6, "deaths": {"agent_0": 2, "agent_2": 4}},
    "all die": {"deaths": {"agent_0": 1, "agent_1": 2, "agent_2": 3}},
    "death and cap in one step": {"max_cycles": 3, "deaths": {"agent_1": 3}},
    "late joiners": {"max_cycles": 5, "births": {"agent_1": 2, "agent_2": 4}},
    "born as the last one dies": {
        "max_cycles": 5,
        "deaths": {"agent_0": 2, "agent_1": 2},
        "births": {"agent_2": 2},
    },
    "episodes of one step": {"max_cycles": 1},
    "alone": {"n": 1, "max_cycles": 3},
}


@pytest.mark.parametrize("faults", [(), ("one_list",), ("keep_agents",), ("reuse",), ("one_list", "reuse")])
@pytest.mark.parametrize("lives", LIVES)
def test_faults_of_an_env_leave_the_arrays_as_a_sound_one_gives_them(lives, faults):
    sound = partial(Team, **LIVES[lives])
    logs = follow(partial(sound, faults=faults), 17, num_envs=3, twin=sound)
    assert sum(not log.interrupted for log in logs) >= 6


class Deserter(Team):
    """Its agent_1 leaves at step 2 without a flag, and with ``silent`` without a last observation."""

    def __init__(self, silent: bool = False) -> None:
        super().__init__(2, max_cycles=4)
        self._silent = silent

    def step(self, actions):
        obs, *rest = super().step(actions)
        if self.t == 2:
            self.agents = ["agent_0"]
            if self._silent:
                del obs["agent_1"]
        return obs, *rest


def idle(envs: SerialVectorEnv) -> dict[str, np.ndarray]:
    return {
        group.name: np.zeros((envs.num_envs, len(group.agents), *group.spaces.action_shape), np.int64)
        for group in envs.groups
    }


def advance(envs: SerialVectorEnv, steps: int, notes: Any = None) -> Any:
    for _ in range(steps):
        result = envs.step(idle(envs), notes)
    return result


@pytest.mark.parametrize("silent", [False, True])
def test_an_agent_that_leaves_without_a_flag_is_truncated_with_an_observation_to_bootstrap_from(silent):
    envs = vector(Deserter, 1, silent=silent)
    envs.reset(0)
    group = advance(envs, 2).groups["agent"]
    assert (group.truncated[0].tolist(), group.terminated.any()) == ([False, True], False)
    assert (group.final_env.tolist(), group.final_agent.tolist()) == ([0], [1])
    assert group.final_obs[0, 0] == (1.0 if silent else 2.0)
    assert follow(partial(Deserter, silent), 9)[0].ends == {"agent_0": "truncated", "agent_1": "truncated"}


def test_a_death_and_a_cut_in_one_step_are_told_apart():
    envs = vector(Team, 1, max_cycles=2, deaths={"agent_1": 2})
    envs.reset(0)
    step = advance(envs, 2)
    group = step.groups["agent"]
    assert group.terminated[0].tolist() == [False, True, False]
    assert group.truncated[0].tolist() == [True, False, True]
    assert group.final_obs[:, 0].tolist() == [2.0, 2.0, 2.0]
    # The copy is already in its next episode.
    assert group.active.all()
    assert group.obs[0, :, 0].tolist() == [0.0, 0.0, 0.0]
    assert step.episodes[0].ends == {"agent_0": "truncated", "agent_1": "terminated", "agent_2": "truncated"}


def test_an_agent_flagged_both_ways_counts_as_terminated():
    class Both(Team):
        def step(self, actions):
            obs, rewards, _, truncations, infos = super().step(actions)
            return obs, rewards, dict(truncations), truncations, infos

    envs = vector(Both, 1, max_cycles=1)
    envs.reset(0)
    step = advance(envs, 1)
    assert step.groups["agent"].terminated.all()
    assert not step.groups["agent"].truncated.any()
    assert set(step.episodes[0].ends.values()) == {"terminated"}


def test_an_agent_that_has_ended_never_comes_back_within_its_episode():
    class Undead(Team):
        def step(self, actions):
            assert "agent_0" not in actions or self.t < 2
            obs, rewards, terminations, truncations, infos = super().step(
                {"agent_0": 0, "agent_1": 0} if self.t >= 2 else actions
            )
            if 2 < self.t < 6:
                terminations["agent_0"] = False
            if self.t < 6:
                self.agents = ["agent_0", "agent_1"]
            return obs, rewards, terminations, truncations, infos

    envs = vector(Undead, 1, n=2, max_cycles=6, deaths={"agent_0": 2})
    envs.reset(0)
    active = []
    for _ in range(6):
        step = advance(envs, 1)
        group = step.groups["agent"]
        active.append(group.active[0].tolist())
    assert active == [[True, True], *[[False, True]] * 4, [True, True]]
    assert step.episodes[0].lengths == {"agent_0": 2, "agent_1": 6}
    assert group.rewards[0].tolist() == [0.0, 6.0]


def test_an_agent_that_joins_late_earns_nothing_before_its_first_action():
    class Gift(Team):
        def step(self, actions):
            obs, rewards, *rest = super().step(actions)
            return obs, {agent: 100.0 if agent not in actions else 1.0 for agent in rewards}, *rest

    envs = vector(Gift, 1, n=2, max_cycles=4, births={"agent_1": 2})
    assert envs.reset(0).groups["agent"].active.tolist() == [[True, False]]
    group = advance(envs, 2).groups["agent"]
    assert (group.active.tolist(), group.rewards.tolist()) == ([[True, True]], [[1.0, 0.0]])
    assert group.obs[0, 1, 0] == 2.0
    assert advance(envs, 1).groups["agent"].rewards.tolist() == [[1.0, 1.0]]


def test_the_order_in_which_an_env_names_its_agents_changes_nothing():
    class Backwards(Team):
        def _turned(self, results):
            return tuple({key: part[key] for key in reversed(part)} for part in results)

        def reset(self, seed=None, options=None):
            results = self._turned(super().reset(seed, options))
            self.agents.reverse()
            return results

        def step(self, actions):
            agents, self.agents = self.agents, sorted(self.agents)
            results = self._turned(super().step(actions))
            self.agents = [*self.agents[::-1]]
            assert set(self.agents) <= set(agents)
            return results

    lives = {"max_cycles": 6, "deaths": {"agent_0": 2, "agent_2": 4}}
    assert len(follow(partial(Backwards, **lives), 14, twin=partial(Team, **lives))) > 2


def trace(seed: int, **kwargs: Any) -> list[np.ndarray]:
    envs = vector(Team, 3, **{"max_cycles": 4, **kwargs})
    step, seen = envs.reset(seed), []
    for _ in range(10):
        group = step.groups["agent"]
        seen += [group.obs.copy(), group.rewards.copy(), group.active.copy(), group.final_obs]
        step = advance(envs, 1)
    return seen


def test_one_seed_is_one_run_and_0_is_a_seed():
    for seed in (0, 1, 2**31 - 1, 2**40):
        np.testing.assert_equal(trace(seed), trace(seed))
    firsts = [trace(seed)[0][0, 0, 1] for seed in (0, 1, 2, 2**31, 2**31 + 1)]
    assert len(set(firsts)) == 5


def test_no_two_episodes_of_a_run_share_a_seed_and_each_can_be_replayed_alone():
    envs = vector(Team, 4, max_cycles=2)
    first = envs.reset(0).groups["agent"].obs.copy()
    logs = [log for _ in range(20) for log in advance(envs, 1).episodes]
    assert len(logs) == 40
    seeds = [log.seed for log in logs]
    assert len(set(seeds)) == 40
    assert seeds == [episode_seed(0, n) for n in range(40)]
    # Copy by copy what an env alone observes after a reset with that seed.
    for log in logs[:4]:
        alone, _ = Team(max_cycles=2).reset(seed=log.seed)
        np.testing.assert_array_equal(first[log.env_index], [alone[f"agent_{i}"] for i in range(3)])


def test_episodes_are_stamped_with_the_env_steps_of_all_copies():
    envs = vector(Team, 3, max_cycles=4)
    envs.resume(frames=600, episodes_started=50)
    assert envs.frames == 600
    envs.reset(1)
    logs = [log for _ in range(9) for log in advance(envs, 1).episodes]
    assert envs.frames == 600 + 3 * 9
    assert [(log.t_start, log.t_end) for log in logs] == [(600, 612)] * 3 + [(612, 624)] * 3
    assert [log.env_index for log in logs] == [0, 1, 2] * 2
    assert [log.seed for log in logs] == [episode_seed(1, n) for n in range(150, 156)]
    assert envs.episodes_started == 59
    assert [(log.t_start, log.t_end, log.interrupted) for log in envs.close()] == [(624, 627, True)] * 3
    assert envs.frames == 627


def test_notes_reach_the_log_of_their_own_copy_and_episode():
    envs = vector(Team, 2, n=2, max_cycles=3)
    envs.reset(0)
    for t in range(3):
        notes = [{}, {"overrides": {"agent_0": 1}, "bound": {"agent_0": 0.1 * t, "agent_1": None}}]
        step = advance(envs, 1, notes)
    quiet, noted = step.episodes
    assert (quiet.overrides, quiet.bound) == ({}, {})
    assert noted.overrides == {"agent_0": 3}
    assert noted.bound == {"agent_0": 0.2, "agent_1": None}
    assert [log.overrides for log in advance(envs, 3).episodes] == [{}, {}]


class Costly(Team):
    """agent_0 costs 0.5 from step 2 on, agent_1 never says; every info tells the step, in dicts that are reused."""

    def _info(self, agents):
        for agent in agents:
            self._infos[agent].clear()
            self._infos[agent]["t"] = self.t
            if agent == "agent_0" and self.t >= 2:
                self._infos[agent]["cost"] = 0.5
        return {agent: self._infos[agent] for agent in agents}


@pytest.mark.parametrize(
    "kind", [np.float64, np.longdouble, np.ndarray.tolist, np.asfortranarray, np.ma.array]
)
def test_whatever_kind_of_array_an_env_observes_the_same_numbers_arrive(kind):
    class Kind(Team):
        def _observe(self, agents):
            as_kind = (lambda a: a.astype(kind)) if isinstance(kind, type) else kind
            return {agent: as_kind(array) for agent, array in super()._observe(agents).items()}

    expected, envs = vector(Team, 2), vector(Kind, 2)
    for each in (expected, envs):
        each.reset(0)
        advance(each, 2)
    ours, theirs = (each.step(idle(each)).groups["agent"].obs for each in (envs, expected))
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs)


def test_a_cost_that_is_not_given_is_nan_and_not_0():
    envs = vector(Costly, 1, n=2, max_cycles=3)
    envs.reset(0)
    costs = []
    for _ in range(4):
        step = advance(envs, 1)
        costs.append(step.groups["agent"].costs[0].tolist())
    np.testing.assert_equal(costs, [[np.nan, np.nan], [0.5, np.nan], [0.5, np.nan], [np.nan, np.nan]])


def test_infos_are_kept_and_those_of_an_episodes_last_step_too_where_the_env_reuses_its_dicts():
    envs = vector(Costly, 2, n=2, max_cycles=2)
    step = envs.reset(0)
    assert (step.infos[0]["agent_1"], step.final_infos) == ({"t": 0}, [None, None])
    step = advance(envs, 1)
    assert (step.infos[1]["agent_0"], step.final_infos) == ({"t": 1}, [None, None])
    step = advance(envs, 1)
    assert step.infos[1]["agent_0"] == {"t": 0}
    assert step.final_infos[1] == {"agent_0": {"t": 2, "cost": 0.5}, "agent_1": {"t": 2}}
