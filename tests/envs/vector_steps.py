"""What two vector envs say, compared down to the bits of every float."""

import dataclasses

import numpy as np


def plain(logs):
    """Episode logs without the time that they took."""
    return [dataclasses.replace(log, wall_time=0.0) for log in logs]


def assert_same(expected, step):
    assert expected.groups.keys() == step.groups.keys()
    for name, group in expected.groups.items():
        for field in dataclasses.fields(group):
            left, right = getattr(group, field.name), getattr(step.groups[name], field.name)
            if left is None:
                assert right is None
                continue
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right, err_msg=field.name)
            # Equal arrays may still differ in the sign of a zero.
            assert left.tobytes() == right.tobytes(), field.name
    assert plain(expected.episodes) == plain(step.episodes)
    assert expected.infos == step.infos
    assert expected.final_infos == step.final_infos
