"""Log lines go where the product sends them, whatever an earlier test in this process made of that."""

import pytest

from marl_tools.core.logging import configure_logging


@pytest.fixture(autouse=True)
def default_logging():
    configure_logging()
