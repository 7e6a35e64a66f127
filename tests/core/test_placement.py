import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.placement import Node, Resources


@pytest.mark.parametrize("amounts", [{"cpus": -1}, {"gpus": float("nan")}, {"custom": {"telescope": -0.5}}])
def test_impossible_amounts_are_refused(amounts):
    with pytest.raises(ConfigError, match=r"a task cannot take (-1|nan|-0.5) of (CPU|GPU|telescope)"):
        Resources(**amounts)


def test_a_node_that_is_gone_fits_nothing():
    node = Node(id="a", host="b", alive=False, resources={"CPU": 8.0})
    assert not node.fits(Resources(cpus=1))
    assert str(Resources(cpus=0.5, custom={"telescope": 1})) == "0.5 CPU, 1 telescope"
    assert str(Resources(cpus=0)) == "nothing"
