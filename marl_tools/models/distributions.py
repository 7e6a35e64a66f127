"""The action distributions: what all have in common, which ones fit which kind of action space, and joint ones.

They are pure functions of a parameter tensor, fast enough for the per-step path. Parameters have shape (..., params), actions
(..., *action_shape); log-probabilities and entropies are summed over the dimensions of one joint action, shape (...).
Randomness comes from the generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol, Self

import gymnasium
import torch
from torch import Tensor

from marl_tools.core.actions import ActionCodec, ActionType, CompositeCodec, action_codec
from marl_tools.core.errors import ConfigError, did_you_mean
from marl_tools.core.spaces import AgentSpaces
from marl_tools.models.continuous import (
    Beta,
    Gumbel,
    LogNormal,
    MultivariateNormal,
    Normal,
    SquashedNormal,
)
from marl_tools.models.discrete import (
    Argmax,
    Bernoulli,
    Categorical,
    GumbelSoftmax,
    MultiCategorical,
    mask_logits,
)

__all__ = [
    "ACTION_PDS",
    "ActionDistribution",
    "ActionPD",
    "Argmax",
    "Bernoulli",
    "Beta",
    "Categorical",
    "Gumbel",
    "GumbelSoftmax",
    "Joint",
    "LogNormal",
    "MultiCategorical",
    "MultivariateNormal",
    "Normal",
    "SquashedNormal",
    "action_distribution",
    "check_action_pdtype",
    "choice_probabilities",
    "get_action_pd_cls",
    "get_action_type",
    "mask_logits",
]


class ActionDistribution(Protocol):
    """What networks and trainer ask of a distribution.

    ``params`` of one row are the network's ``outputs`` for it, then ``free`` ones, which are learned but do not depend on the
    observation. One that is not ``trainable`` has no gradient to learn from.
    """

    @property
    def params(self) -> int: ...

    @property
    def outputs(self) -> int: ...

    @property
    def free(self) -> int: ...

    @property
    def trainable(self) -> bool: ...

    @classmethod
    def of(cls, codec: Any) -> Self:
        """The one that fits an action space, given by its `ActionCodec`."""
        ...

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor: ...

    def mode(self, params: Tensor) -> Tensor: ...

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor: ...

    def entropy(self, params: Tensor) -> Tensor: ...


ActionPD = ActionDistribution
"""SLM-Lab's name."""


@dataclass(frozen=True)
class Joint:
    """Independent parts of a Dict or Tuple action, ``shapes[i]`` each.

    The parameters are the outputs of all parts, then the free ones of all parts.
    """

    parts: tuple[ActionDistribution, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, codec: ActionCodec) -> Self:
        assert isinstance(codec, CompositeCodec)
        return cls(
            tuple(get_action_pd_cls(None, part.kind).of(part) for part in codec.parts),
            tuple(part.shape for part in codec.parts),
        )

    @property
    def params(self) -> int:
        return self.outputs + self.free

    @property
    def outputs(self) -> int:
        return sum(part.outputs for part in self.parts)

    @property
    def free(self) -> int:
        return sum(part.free for part in self.parts)

    @property
    def trainable(self) -> bool:
        return all(part.trainable for part in self.parts)

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        return self._join(
            [part.sample(own, generator) for part, own in zip(self.parts, self._own(params), strict=True)]
        )

    def mode(self, params: Tensor) -> Tensor:
        return self._join([part.mode(own) for part, own in zip(self.parts, self._own(params), strict=True)])

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        played = actions.split([shape[0] if shape else 1 for shape in self.shapes], -1)
        rows = [
            part.log_prob(own, action if shape else action.squeeze(-1))
            for part, own, action, shape in zip(
                self.parts, self._own(params), played, self.shapes, strict=True
            )
        ]
        return torch.stack(rows).sum(0)

    def entropy(self, params: Tensor) -> Tensor:
        rows = [part.entropy(own) for part, own in zip(self.parts, self._own(params), strict=True)]
        return torch.stack(rows).sum(0)

    def _own(self, params: Tensor) -> list[Tensor]:
        """Each part's parameters."""
        outputs, free = params.split([self.outputs, self.free], -1)
        pairs = zip(
            outputs.split([part.outputs for part in self.parts], -1),
            free.split([part.free for part in self.parts], -1),
            strict=True,
        )
        return [torch.cat(pair, -1) for pair in pairs]

    def _join(self, actions: list[Tensor]) -> Tensor:
        """Choices are whole numbers as floats where numbers stand beside them."""
        rows = [
            action if shape else action.unsqueeze(-1)
            for action, shape in zip(actions, self.shapes, strict=True)
        ]
        return torch.cat(rows, -1)


_CLASSES: Mapping[ActionType, tuple[type[ActionDistribution], ...]] = {
    "discrete": (Categorical, Argmax, GumbelSoftmax),
    "continuous": (Normal, Beta, MultivariateNormal, LogNormal, Gumbel, SquashedNormal),
    "multi_discrete": (MultiCategorical,),
    "multi_binary": (Bernoulli,),
    "composite": (Joint,),
}
ACTION_PDS: Mapping[ActionType, tuple[str, ...]] = {
    kind: tuple(cls.__name__ for cls in classes) for kind, classes in _CLASSES.items()
}
"""The names that ``action_pdtype`` can have for each type of action space; the first is the default."""


def choice_probabilities(distribution: ActionDistribution, params: Tensor) -> Tensor:
    """Probabilities (..., n) of all choices, of a distribution over one choice out of n."""
    n = distribution.outputs
    every = torch.arange(n).expand(*params.shape[:-1], n)
    return distribution.log_prob(params.unsqueeze(-2).expand(*every.shape, n), every).exp()


def action_distribution(spaces: AgentSpaces, action_pdtype: str | None = None) -> ActionDistribution:
    """The distribution of this name, None or "default" for the usual one, over an agent's actions.

    Raises:
        ConfigError: the action space has no distribution of this name, or lacks the bounds that it needs.
    """
    return get_action_pd_cls(action_pdtype, spaces.action_type).of(spaces.codec)


def get_action_type(action_space: gymnasium.Space) -> ActionType:
    """The type of an action space, a key of `ACTION_PDS`.

    Raises:
        ConfigError: no policy can play it.
    """
    return action_codec(action_space).kind


def get_action_pd_cls(action_pdtype: str | None, action_type: ActionType) -> type[ActionDistribution]:
    """The distribution's class by its name; None or "default" is the first of ``ACTION_PDS[action_type]``.

    Raises:
        ConfigError: unknown name or type; the message lists what there is.
    """
    if action_type not in _CLASSES:
        raise ConfigError(f"action_type={action_type!r}: unknown.{did_you_mean(action_type, _CLASSES)}")
    if action_pdtype in (None, "default"):
        return _CLASSES[action_type][0]
    for cls in _CLASSES[action_type]:
        if cls.__name__ == action_pdtype:
            return cls
    raise _unknown(action_pdtype, ACTION_PDS[action_type], f" for {action_type} actions")


def check_action_pdtype(action_pdtype: str | None) -> None:
    """Refuse a name that no type of action space knows."""
    known = [name for names in ACTION_PDS.values() for name in names]
    if action_pdtype not in (None, "default", *known):
        raise _unknown(action_pdtype, known, "")


def _unknown(name: object, known: Sequence[str], where: str) -> ConfigError:
    choices = ", ".join(["default", *known])
    close = get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return ConfigError(
        f"action_pdtype={name!r}: there is none of this name{where}. Choose one of {choices}.{hint}"
    )
