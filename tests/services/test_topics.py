"""Topics: the newest value, in order, whoever is started again meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from service_hosting import hosted

from ludus.services.endpoints import TimeLimit, UnknownService
from ludus.services.registry import MemoryRegistry
from ludus.services.topics import Publisher, Subscriber, Topics


@pytest.fixture
def registry() -> Iterator[MemoryRegistry]:
    made = MemoryRegistry()
    with hosted(Topics(), made, name="topics-0"):
        yield made


def test_arrays_are_published_and_fetched(registry: MemoryRegistry) -> None:
    weights = {"layer": np.random.default_rng(0).normal(size=(200, 300)).astype(np.float32)}
    with Publisher("main", registry=registry) as main, Subscriber("main", registry=registry) as actor:
        assert main.publish(weights) == 1
        found = actor.wait(10)
        assert found.version == 1
        np.testing.assert_array_equal(found.value["layer"], weights["layer"])
        assert actor.newest() is found
        main.publish({"step": 2})
        assert actor.wait(10) == (2, {"step": 2})


def test_the_latest_wins_and_versions_only_grow(registry: MemoryRegistry) -> None:
    with Publisher("main", registry=registry) as main, Subscriber("main", registry=registry) as actor:
        seen: list[int] = []

        def subscribe() -> None:
            while not seen or seen[-1] < 300:
                seen.append(actor.wait(10).value)

        subscriber = threading.Thread(target=subscribe)
        subscriber.start()
        for number in range(1, 301):
            assert main.publish(number) == number
        subscriber.join(10)
        assert seen == sorted(set(seen))
        assert seen[-1] == 300
    with Subscriber("main", registry=registry) as late:
        assert late.wait(10) == (300, 300)  # no history


def test_topics_do_not_mix(registry: MemoryRegistry) -> None:
    with Publisher("one", registry=registry) as one, Subscriber("two", registry=registry) as two:
        one.publish("for one")
        assert two.newest() is None
        with pytest.raises(TimeLimit, match="topic 'two' has nothing newer than version 0"):
            two.wait(0.2)


def test_versions_go_on_when_the_service_is_started_again() -> None:
    registry = MemoryRegistry()
    registry.declare("topics")
    with Publisher("main", registry=registry) as main, Subscriber("main", registry=registry) as actor:
        with hosted(Topics(), registry, name="topics-0"):
            for number in range(5):
                main.publish(number)
            assert actor.wait(10).version == 5
        with hosted(Topics(), registry, name="topics-0"):
            with Publisher("main", registry=registry) as newcomer:
                newcomer.publish("first of a newcomer")  # under a version that the subscriber has seen
            assert actor.wait(10) == (6, "first of a newcomer")
            assert main.publish("next") > 6
            assert actor.wait(10).value == "next"


def test_looking_never_waits_for_a_service_that_is_being_started_again() -> None:
    registry = MemoryRegistry()
    registry.declare("topics")
    # A look that waited would raise at this time limit.
    with Subscriber("main", registry=registry, time_limit_s=0.5) as actor, Publisher("main", registry=registry) as main:
        assert actor.newest() is None
        with hosted(Topics(), registry, name="topics-0") as host:
            main.publish("one")
            assert actor.wait(10) == (1, "one")
            registry.withdraw(host.instance)
            host.die()
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert actor.newest() == (1, "one")
            time.sleep(0.01)
        with pytest.raises(TimeLimit, match="nothing newer than version 1"):
            actor.wait(0.1)
        with hosted(Topics(), registry, name="topics-0"):
            main.publish("two")
            assert actor.wait(10) == (2, "two")


def test_without_the_service_it_says_so() -> None:
    with pytest.raises(UnknownService, match="no service 'topics'"):
        Publisher("main", registry=MemoryRegistry()).publish(1)
    with pytest.raises(UnknownService, match="no service 'topics'"):
        Subscriber("main", registry=MemoryRegistry()).wait(10)
