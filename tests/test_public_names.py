"""The public face: one list of names, the same for people, type checkers and `import *`."""

import ast
from pathlib import Path

import pytest

import marl_tools

STUB = Path(marl_tools.__file__).with_suffix(".pyi")


def stub_names():
    names = set()
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names |= {(alias.asname, node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.AnnAssign):
            names.add((node.target.id, None, None))
    return names


def test_the_stub_declares_exactly_the_public_names():
    assert {name for name, _, _ in stub_names()} == set(marl_tools.__all__)
    assert len(marl_tools.__all__) == len(set(marl_tools.__all__))


@pytest.mark.parametrize("name", marl_tools.__all__)
def test_a_public_name_resolves_to_what_the_stub_says(name):
    module, original = next((module, original) for own, module, original in stub_names() if own == name)
    value = getattr(marl_tools, name)
    if module is not None:
        assert original == name
        assert value is getattr(__import__(module, fromlist=[name]), name)
    assert getattr(marl_tools, name) is value


def test_a_name_that_is_not_there_is_an_attribute_error_like_any_other():
    with pytest.raises(AttributeError, match="module 'marl_tools' has no attribute 'EpisodeCapp'"):
        marl_tools.EpisodeCapp
    assert not hasattr(marl_tools, "_HOMES_")
    with pytest.raises(ImportError):
        exec("from marl_tools import nothing_of_the_kind")


def test_dir_and_star_show_the_public_names():
    assert dir(marl_tools) == sorted(marl_tools.__all__)
    namespace = {}
    exec("from marl_tools import *", namespace)
    assert namespace.keys() >= set(marl_tools.__all__)
