"""The numbers that a freshly seeded NumPy generator would give, for many seeds at once and to the bit.

A reset of an mpe2 env seeds a generator and draws a few numbers from it. Building the generator costs more than all the steps of an
episode do in arrays, so for many worlds its seeding and its first outputs are computed here for all seeds together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

U32, U64 = NDArray[np.uint32], NDArray[np.uint64]

# NumPy's SeedSequence, which follows O'Neill's seed_seq_fe: hash multipliers and initial values.
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_POOL = 4
# PCG64 (O'Neill 2014): a linear congruential generator on 128 bits.
_PCG_MULT = 0x2360ED051FC65DA44385DF649FCCF645
_MASK128 = (1 << 128) - 1
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)

_FEW = 8
"""Below so many seeds, NumPy's own generators are quicker."""


class SeededDraws:
    """``integers(n)`` for each n of ``choices``, then ``uniforms`` numbers of ``random()``, after seeding.

    Args:
        choices: how many values each integer may take, from 0 on; below 2**32.
        uniforms: how many numbers in [0, 1) follow.
    """

    def __init__(self, choices: Sequence[int], uniforms: int) -> None:
        self.choices, self.uniforms = tuple(choices), uniforms
        # A single possible value is not drawn, and two draws of 32 bits share one output.
        self._drawn = [row for row, n in enumerate(self.choices) if n > 1]
        self._outputs_of_choices = (len(self._drawn) + 1) // 2
        self._powers, self._sums = _jumps(self._outputs_of_choices + uniforms)

    def draw(self, seeds: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Choices (choices, n) and numbers (uniforms, n) of n seeds, each below 2**32."""
        chosen = np.zeros((len(self.choices), len(seeds)), np.int64)
        numbers = np.empty((self.uniforms, len(seeds)))
        if len(seeds) < _FEW:
            self._ask_numpy(seeds, range(len(seeds)), chosen, numbers)
            return chosen, numbers
        outputs = self._outputs(np.array(seeds, np.uint32))
        np.multiply(outputs[self._outputs_of_choices :] >> np.uint64(11), 2.0**-53, out=numbers)
        rejected = np.zeros(len(seeds), bool)
        for draw, row in enumerate(self._drawn):
            output = outputs[draw // 2]
            word = output >> _HALF if draw % 2 else output & _LOW
            # Lemire (2019): the upper half of a product; few remainders are refused, else it would be biased.
            n = self.choices[row]
            product = word * np.uint64(n)
            chosen[row] = product >> _HALF
            rejected |= (product & _LOW) < (1 << 32) % n
        self._ask_numpy(seeds, np.flatnonzero(rejected).tolist(), chosen, numbers)
        return chosen, numbers

    def _ask_numpy(
        self,
        seeds: Sequence[int],
        columns: Sequence[int],
        chosen: NDArray[np.int64],
        numbers: NDArray[np.float64],
    ) -> None:
        for column in columns:
            generator = np.random.Generator(np.random.PCG64(seeds[column]))
            for row in self._drawn:
                chosen[row, column] = generator.integers(self.choices[row])
            numbers[:, column] = generator.random(self.uniforms)

    def _outputs(self, seeds: U32) -> U64:
        """The first outputs (k, n) of PCG64 for n seeds."""
        words = _seed_words(seeds)
        start = words[0], words[1]
        # The stream is chosen by an odd increment.
        one = np.uint64(1)
        increment = words[2] << one | words[3] >> np.uint64(63), words[3] << one | one
        high, low = _add(
            _multiply(self._powers, _add(start, increment)),
            _multiply(self._sums, increment),
        )
        folded, turn = high ^ low, high >> np.uint64(58)
        return folded >> turn | folded << ((np.uint64(64) - turn) & np.uint64(63))


def _jumps(outputs: int) -> tuple[tuple[U64, U64], tuple[U64, U64]]:
    """What state k of PCG64 is made of: power x (seed + increment) + sum x increment, as columns (high, low)."""
    powers, sums = [], []
    power, total = _PCG_MULT, 1
    for _ in range(outputs):
        # Seeding takes one step of its own, hence the power that is one higher.
        total = (total + power) & _MASK128
        power = power * _PCG_MULT & _MASK128
        powers.append(power)
        sums.append(total)
    return _halves(powers), _halves(sums)


def _halves(numbers: Sequence[int]) -> tuple[U64, U64]:
    low = (1 << 64) - 1
    columns = [[number >> 64 for number in numbers], [number & low for number in numbers]]
    high, low_column = (np.array(column, np.uint64)[:, None] for column in columns)
    return high, low_column


def _seed_words(seeds: U32) -> U64:
    """``SeedSequence(seed).generate_state(4, np.uint64)`` for n seeds, (4, n)."""
    pool = np.zeros((_POOL, len(seeds)), np.uint32)
    pool[0] = seeds
    pool = _hash(pool, _FILL)
    for source, (others, constants) in enumerate(_STIR):
        mixed = pool[others] * _MIX_LEFT - _hash(pool[source], constants) * _MIX_RIGHT
        pool[others] = mixed ^ mixed >> np.uint32(16)
    words = _hash(np.concatenate([pool, pool]), _SPREAD).astype(np.uint64)
    return words[0::2] | words[1::2] << _HALF


def _hash(words: U32, constants: U32) -> U32:
    """Hash rows of words, row i with constants i and i + 1."""
    hashed = (words ^ constants[:-1]) * constants[1:]
    return hashed ^ hashed >> np.uint32(16)


def _add(a: tuple[U64, U64], b: tuple[U64, U64]) -> tuple[U64, U64]:
    """Sum modulo 2**128 of numbers given as (high, low)."""
    low = a[1] + b[1]
    return a[0] + b[0] + (low < b[1]), low


def _multiply(a: tuple[U64, U64], b: tuple[U64, U64]) -> tuple[U64, U64]:
    """Product modulo 2**128 of numbers given as (high, low)."""
    a_low, a_high = a[1] & _LOW, a[1] >> _HALF
    b_low, b_high = b[1] & _LOW, b[1] >> _HALF
    middle = a_high * b_low + (a_low * b_low >> _HALF)
    carry = (middle & _LOW) + a_low * b_high
    upper = a_high * b_high + (middle >> _HALF) + (carry >> _HALF)
    return upper + a[0] * b[1] + a[1] * b[0], a[1] * b[1]


def _hash_constants(first: int, factor: int, hashes: int) -> U32:
    """The running constant before each hash and after the last, (hashes + 1, 1)."""
    return np.array([first * pow(factor, k, 1 << 32) % (1 << 32) for k in range(hashes + 1)], np.uint32)[
        :, None
    ]


_POOLED = _hash_constants(_INIT_A, _MULT_A, _POOL * _POOL)
_FILL = _POOLED[: _POOL + 1]
# Each word of the pool in turn is mixed into the three others.
_STIR = [
    ([word for word in range(_POOL) if word != source], _POOLED[first : first + _POOL])
    for source, first in enumerate(range(_POOL, _POOL * _POOL, _POOL - 1))
]
_SPREAD = _hash_constants(_INIT_B, _MULT_B, 2 * _POOL)
