"""Another rank of the learner as a process: does what rank 0 does, with what its own actors play."""

from __future__ import annotations

import select

from ludus.local.learner_process import open_rank
from ludus.local.rank_links import Leader
from ludus.local.shared_parts import WAIT_S
from ludus.runtime.heap import Heap
from ludus.runtime.messages import Configure, Forget, Reset
from ludus.runtime.process import Launch, PeerGone
from ludus.runtime.rank_messages import Compare, ToRank, Train


def run_follower(launch: Launch) -> None:
    """The main loop: say what waits here, and do what rank 0 says."""
    rank = open_rank(launch)
    learner, intake = rank.learner, rank.intake
    leader = Leader(rank.links[0])
    woken = rank.signals[launch.index]
    poll = select.poll()
    for descriptor in (woken.fds[0], leader.link.fileno(), rank.control.fileno()):
        poll.register(descriptor, select.POLLIN)

    def obey(order: ToRank) -> None:
        if isinstance(order, Train):
            learner.train(order.parts)
        elif isinstance(order, Compare):
            learner.compare()
        elif isinstance(order, Reset):
            learner.reset(order.event)
        elif isinstance(order, Configure):
            learner.configure(order.player, order.settings)
        elif isinstance(order, Forget):
            intake.forget(order, learner)

    heap = Heap()
    while True:
        rank.show_life()
        heap.settle()
        intake.take_in(learner)
        if learner.progress >= 1.0:
            learner.discard()
        intake.settle(learner)
        leader.tell(learner.standing())
        poll.poll(WAIT_S * 1000)
        woken.wait(0)
        if rank.control.poll(0):
            raise PeerGone("nothing is said without being asked: the controller is gone")
        while (order := leader.next_order()) is not None:
            obey(order)
            rank.show_life()
