"""The processes that torchrun starts for one run: who this one is, what they tell each other, and what ends them together."""

from __future__ import annotations

import itertools
import os
import socket
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from marl_tools.core.errors import WorkerError
from marl_tools.core.types import EpisodeLog, VectorEnv
from marl_tools.core.wrappers.direct import steps_directly
from marl_tools.training.contracts import Actor
from marl_tools.training.rollout import Noise
from marl_tools.training.slices import Part, SlicePlayer, SpreadEnvs

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_AS_LONG_AS_IT_TAKES = timedelta(days=30)
"""For the first rank's word: it may evaluate and film meanwhile. A rank that is killed is noticed at once all the same."""
_LAST_WORDS = timedelta(seconds=8)
"""How long who goes on waits to hear from the others after one was lost; torchrun kills all of them after 30."""


_sessions = itertools.count()


def under_torchrun() -> bool:
    """Whether this process is one of several that run one training run together."""
    return all(name in os.environ for name in _VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


def follows() -> bool:
    """Whether this process is one of several and not the first, which alone writes and prints."""
    return under_torchrun() and int(os.environ["RANK"]) > 0


class Ranks:
    """This process among those of one run, rank 0 to size - 1; a context manager. Needs `under_torchrun`.

    Raises:
        WorkerError: from each method that needs the others, where one has died, failed or does not answer: it is named.
    """

    def __init__(self) -> None:
        store, self.rank, self.size = next(dist.rendezvous("env://"))
        # Ours outlives the group, which is closed so that the others notice when this rank has failed.
        # The store keeps what was written before: by the ranks of an earlier attempt, or of an earlier call in this script.
        session = f"marl-tools-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}-{next(_sessions)}"
        self._words = dist.PrefixStore(f"{session}-words", store)
        self._words.set(f"place/{self.rank}", f"{socket.gethostname()}, process {os.getpid()}")
        self._said, self._timeout = False, 0.0
        self._group: Any = None
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(f"{session}-group", store),
            rank=self.rank,
            world_size=self.size,
            timeout=_AS_LONG_AS_IT_TAKES,
        )

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes, evaluates and tells the others what to do."""
        return self.rank == 0

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._say(f"{type(error).__name__}: {error}")
        elif self.leads:
            self.tell(None)
        self._leave()

    def open(self, timeout: float) -> None:
        """Begin a run: from now on `gather` and `add_up` wait at most so many seconds for the slowest rank."""
        self._timeout = timeout
        with self._together():
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))

    def tell(self, word: Any) -> None:
        """As the first rank: what the others do next; None: nothing more."""
        with self._together():
            dist.broadcast_object_list([word], src=0)

    def told(self) -> Any:
        """As another rank: what the first one `tell`s next, however long that takes."""
        word = [None]
        with self._together():
            dist.broadcast_object_list(word, src=0)
        return word[0]

    def gather(self, own: Any) -> list[Any]:
        """What every rank has, in order, at every rank."""
        everyone: list[Any] = [None] * self.size
        with self._together():
            dist.all_gather_object(everyone, own, group=self._group)
        return everyone

    def add_up(self, *tensors: Tensor) -> None:
        """Replace float tensors by their sums over all ranks, which get the same bits."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with self._together():
            dist.all_reduce(flat, group=self._group)
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, flat.split(sizes), strict=True):
            tensor.copy_(total.view_as(tensor))

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Where a rank has died, a SIGTERM in the block is torchrun's, which ends all others: the dead one is named.

        Raises:
            WorkerError: in place of the KeyboardInterrupt that a signal has become.
        """
        try:
            yield
        except KeyboardInterrupt as stop:
            if reason := self._listen(stop):
                raise WorkerError(reason) from None
            raise

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = self._listen(error) or f"the ranks lost each other: {error}"
            raise WorkerError(reason) from error

    def _listen(self, error: BaseException) -> str:
        """After something went wrong: close the group, hear what became of the others; "" if nobody else is to blame."""
        self._say("")
        # Connections of a group that something refers to stay open, and who waits for this rank would go on waiting.
        traceback.clear_frames(error.__traceback__)
        self._leave()
        others = [rank for rank in range(self.size) if rank != self.rank]
        with suppress(RuntimeError):
            self._words.wait([f"word/{rank}" for rank in others], _LAST_WORDS)
        return "; ".join(
            f"rank {rank} of {self.size} ({self._place(rank)}) {word}"
            for rank in others
            if (word := self._word(rank))
        )

    def _word(self, rank: int) -> str:
        """How a rank ended; "" for one that ends because of another."""
        with suppress(RuntimeError):
            if not self._words.check([f"word/{rank}"]):
                return f"was killed, lost, or did not answer for {self._timeout:g} s"
            word = self._words.get(f"word/{rank}").decode()
            return f"failed: {word}" if word else ""
        return "cannot be asked any more: the machine of the first rank is gone"

    def _place(self, rank: int) -> str:
        with suppress(RuntimeError):
            return self._words.get(f"place/{rank}").decode()
        return "unknown place"

    def _say(self, word: str) -> None:
        """Leave word of how this rank ends, once."""
        if not self._said:
            self._said = True
            with suppress(RuntimeError):
                self._words.set(f"word/{self.rank}", word)

    def _leave(self) -> None:
        self._group = None
        if dist.is_initialized():
            dist.destroy_process_group()


class RankEnvs(SpreadEnvs):
    """The copies of a run in slices, one a rank: each plays its own, and all of them get all that was played.

    Args:
        own: the slice of this rank.
    """

    def __init__(self, own: VectorEnv, ranks: Ranks, num_envs: int) -> None:
        super().__init__(own.groups, own.env_name, num_envs, ranks.size)
        self.own, self.ranks = own, ranks
        self.direct = any(map(steps_directly, getattr(own, "envs", ())))
        self._player: SlicePlayer | None = None

    def _begin(self, seed: int, steps: int, state: Mapping[str, Any] | None) -> Sequence[dict[str, Any]]:
        copies = self.slices[self.ranks.rank]
        self._player = SlicePlayer(self.own, copies, self.num_envs, steps=steps, seed=seed, state=state)
        return self.ranks.gather(self.own.state())

    def _play(self, actors: Mapping[str, Actor], noise: Sequence[Noise], update: int | None) -> list[Part]:
        assert self._player is not None
        return self.ranks.gather(self._player.play(actors, noise[self.ranks.rank], update))

    def close(self) -> list[EpisodeLog]:
        """Close this rank's copies."""
        return self.own.close()
