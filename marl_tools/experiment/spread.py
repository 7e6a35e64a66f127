"""One run in several processes: started by torchrun each learns from its part, or Ray actors play the rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar

from marl_tools.core.copies import slices
from marl_tools.core.factory import EnvFactory
from marl_tools.core.types import VectorEnv
from marl_tools.experiment.assemble import make_trainer
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.native import closed_after, make_envs, slice_envs
from marl_tools.experiment.stopping import terminate_like_ctrl_c
from marl_tools.training.contracts import Standing
from marl_tools.training.ranks import RankEnvs, Ranks, under_torchrun
from marl_tools.training.slices import SpreadEnvs
from marl_tools.vector.pickling import pickle_factory

Result = TypeVar("Result")


def led(work: Callable[[Ranks | None], Result], *, otherwise: Result) -> Result:
    """What ``work`` returns, in a process of its own or the first that torchrun has started; the others follow it.

    They step their copies and learn their part, write nothing, and return ``otherwise`` once the first is done.
    """
    if not under_torchrun():
        return work(None)
    with Ranks() as ranks:
        if ranks.leads:
            return work(ranks)
        with blamed(ranks), terminate_like_ctrl_c():
            follow(ranks)
        return otherwise


def follow(ranks: Ranks) -> None:
    """The life of a process that does not lead: run after run, as told."""
    word = ranks.told()
    while isinstance(word, RunConfig):
        word = _play_along(word, ranks)


def _play_along(config: RunConfig, ranks: Ranks) -> object:
    """Take part in one run; returns the first word that is no longer about it."""
    import torch

    torch.set_num_threads(config.threads)
    factory = config.factory()
    envs = run_envs(config, factory, ranks)
    with closed_after(envs):
        trainer, _ = make_trainer(config, factory, envs, ranks)
        word = ranks.told()
        while word is not None and not isinstance(word, RunConfig):
            if isinstance(word, Standing):
                trainer.load(*word)
                if word.state["envs"] is None:
                    trainer.begin()
            else:
                trainer.match(word)
                trainer.update(trainer.collect())
            word = ranks.told()
        return word


def run_envs(config: RunConfig, factory: EnvFactory, ranks: Ranks | None) -> VectorEnv | SpreadEnvs:
    """All copies of a run's env: here, in workers, or spread over processes.

    Raises:
        ConfigError: settings that do not go together with several processes, or what the env cannot have.
    """
    stepping, num_envs = config.stepping, config.num_envs
    if ranks is None and stepping.rollout_actors:
        return _actor_envs(config, factory)
    if ranks is None:
        return make_envs(factory, num_envs, native=config.native, stepping=stepping)
    shielded, saving = config.safety.shield != "none", config.saving.trajectories
    stepping.check_ranks(ranks.size, num_envs=num_envs, shielded=shielded, saving=saving)
    if ranks.leads:
        ranks.tell(config)
    ranks.open(stepping.rollout_timeout)
    own = slice_envs(factory, slices(num_envs, ranks.size)[ranks.rank], num_envs, native=config.native)
    return RankEnvs(own, ranks, num_envs)


def _actor_envs(config: RunConfig, factory: EnvFactory) -> SpreadEnvs:
    from marl_tools.core.cluster import connect
    from marl_tools.training.rollout_actors import ActorEnvs

    stepping = config.stepping
    pickle_factory(factory)
    with ExitStack() as stack:
        # Cores that are not there cost less than actors that wait for one for ever.
        cluster = stack.enter_context(connect(stepping.ray_address, cpus=stepping.rollout_actors))
        envs = ActorEnvs(
            partial(slice_envs, factory, native=config.native),
            config.num_envs,
            stepping.rollout_actors,
            cluster=cluster,
            timeout=stepping.rollout_timeout,
            on_death=stepping.on_worker_death,
        )
        # Whoever closes the envs leaves the cluster.
        envs.owns(stack.pop_all())
        return envs


@contextmanager
def blamed(ranks: Ranks | None) -> Iterator[None]:
    """`Ranks.blamed`, where there are any."""
    if ranks is None:
        yield
    else:
        with ranks.blamed():
            yield
