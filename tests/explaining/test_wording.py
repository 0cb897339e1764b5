"""Sentences name what matters alone, and figures are written as people write them."""

import numpy as np

from kann.analysis.movers import Movers
from kann.explaining import choosing, wording


def movers_of(push):
    column = np.array(push)[:, None]
    count = np.full(len(push), 9)
    return Movers(
        by="inputs",
        modes=(0,),
        names=tuple(f"input {i}" for i in range(len(push))),
        push=column,
        low=column - 1e-4,
        high=column + 1e-4,
        sure=np.abs(column) - 1e-4,
        count=count,
        sequences=count,
        level=0.95,
        outputs=None,
        phrases=((),),
    )


def test_pushes_that_are_sure_but_negligible_are_not_named():
    assert wording._pushed(movers_of([0.5, 0.004]), 0) == " is pushed up by “input 0”"
    assert wording._pushed(movers_of([0.5, 0.1]), 0) == " is pushed up by “input 0”, “input 1”"
    assert wording._pushed(movers_of([0.5, -0.004]), 0) == " is pushed up by “input 0”"


def test_nothing_is_not_written_as_minus_nothing():
    assert choosing._percent(-0.002) == "0%"
