"""Seeds of episodes: each episode of a run has its own, and no two coincide."""

from __future__ import annotations

_BITS = 31
_MASK = (1 << _BITS) - 1


def episode_seed(run_seed: int, episode: int) -> int:
    """The env seed of the ``episode``-th episode of a run, in [0, 2**31).

    For a fixed run seed this is a bijection on 31 bits (odd multiplications and xor-shifts, as in MurmurHash3's
    finaliser), so two episodes of a run never share a seed, which independent draws would do after some 50,000.
    """
    # Python's own integers: NumPy's would overflow in the products.
    run_seed, episode = int(run_seed), int(episode)
    value = (episode ^ _mix(run_seed & _MASK ^ _mix(run_seed >> _BITS & _MASK))) & _MASK
    return _mix(value)


def _mix(value: int) -> int:
    value = (value ^ value >> 15) * 0x2C1B3C6D & _MASK
    value = (value ^ value >> 12) * 0x297A2D39 & _MASK
    return value ^ value >> 15
