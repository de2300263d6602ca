"""What messages are made of."""

from __future__ import annotations

import pytest

from hogwild.errors import some_of


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        ([str(number) for number in range(2000)], "0, 1, 2 and 1,997 more"),
    ],
)
def test_a_message_names_a_few_and_counts_the_rest(names, told):
    assert some_of(names) == told


def test_how_many_and_what_stands_between_them_can_be_chosen():
    assert some_of(["a: 1", "b: 2", "c: 3"], 2, between="; ") == "a: 1; b: 2 and 1 more"


def test_names_that_a_file_chose_stay_on_one_line():
    assert some_of(["a\nb", "\x1b[2J"]) == "a b, �[2J"
