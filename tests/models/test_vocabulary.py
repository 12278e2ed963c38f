import pytest
import torch

from ludus.models.encoders import KnownTypes, check_vocabulary
from ludus.models.operators import stack_modules


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
    ("numbers", "message"), [((), "types is empty"), ((1, 2, 1), "types names 1 twice"), ((0, 9), "from 0 to 8, got 9")]
)
def test_vocabularies_that_make_no_sense_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        check_vocabulary("types", numbers, 9)
