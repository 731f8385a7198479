"""What is taken for a number, and how everything else is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from envrl.errors import WorldError, finite_number, unknown


@pytest.mark.parametrize("value", [float("nan"), -float("inf"), "good", "1", None, [1.0], 10**400])
def test_what_is_no_finite_number_is_refused_by_name_and_value(value: Any) -> None:
    with pytest.raises(WorldError, match="reward term mine is .*, no finite number") as refused:
        finite_number("reward term mine", value)
    assert repr(value)[:40] in str(refused.value)


@pytest.mark.parametrize("value", [1, True, 1.0, np.float32(1), torch.tensor(1.0)])
def test_numbers_of_other_libraries_are_numbers(value: Any) -> None:
    assert finite_number("reward", value) == 1.0


def test_where_there_are_no_choices_it_says_so() -> None:
    assert unknown("argument", "words", []) == "argument: unknown 'words'; choose from: (none)"
