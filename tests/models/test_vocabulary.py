import numpy as np
import pytest
import torch

from ludus.models.operators import stack_modules
from ludus.models.vocabulary import KnownTypes, check_vocabulary, vocabulary_of


def test_vocabulary_is_what_occurs_often_enough():
    actions = np.array([[4, 0, 0], [2, 4, 0]], np.int32)
    assert vocabulary_of(actions) == (0, 2, 4)
    assert vocabulary_of(actions, at_least=2) == (0, 4)
    assert all(type(number) is int for number in vocabulary_of(actions))


def test_padding_is_not_part_of_the_vocabulary():
    types = np.array([[[3.0, np.nan], [5.0, 3.0]]], np.float32)
    assert vocabulary_of(types, np.array([[1, 2]])) == (3, 5)
    assert vocabulary_of(types, np.array([[1, 0]])) == (3,)


def test_unknown_numbers_share_place_zero():
    types = KnownTypes(5, (1, 4))
    numbers = torch.tensor([[0.0, 1.0, 4.0], [5.0, -1.0, 3.0]])
    assert types(numbers).tolist() == [[0, 1, 2], [0, 0, 0]]
    everything = KnownTypes(3, None)
    assert everything(torch.tensor([0, 1, 2, 3])).tolist() == [1, 2, 3, 0]


def test_a_stack_has_a_vocabulary_for_each_model():
    stack = stack_modules([KnownTypes(5, (1, 4)), KnownTypes(5, (0, 1))])
    assert stack(torch.tensor([[0, 1], [0, 1]])).tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((), "types is empty"), ((1, 2, 1), "types names 1 twice"), ((0, 9), "from 0 to 8, got 9")],
)
def test_vocabularies_that_make_no_sense_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        check_vocabulary("types", numbers, 9)
