"""What processes say to each other arrives as it was said, also where it is no number."""

import math
from contextlib import closing
from multiprocessing import Pipe

from ludus.data.records import Result
from ludus.system.process import receive, send
from ludus.workers.messages import FromActor, ReportResult


def test_a_score_that_is_no_number_arrives() -> None:
    result = Result(
        match_id=7,
        episodes=2,
        steps=10,
        decisions=(10,),
        pairs=(),
        score_sum=(math.nan,),
        score_square_sum=(math.inf,),
        first_models=("main:0:1",),
        last_models=("main:0:2",),
    )
    here, there = Pipe()
    with closing(here), closing(there):
        send(here, ReportResult(result))
        found = receive(there, FromActor).result
    assert math.isnan(found.score_sum[0])
    assert found.score_square_sum == (math.inf,)
    assert (found.match_id, found.first_models, found.pairs) == (7, ("main:0:1",), ())
