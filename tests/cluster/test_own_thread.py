"""Calls that are done in another thread."""

from __future__ import annotations

import threading

import pytest

from ludus.runtime.ray.node_agent import OwnThread


def started(step: list[str]) -> OwnThread:
    """Its rounds take the words in `step`: "fail" ends it."""

    def go_on() -> None:
        if step and step.pop() == "fail":
            raise OSError("no space left")

    thread = OwnThread("site", lambda: thread.wake.wait(0.01) and None, go_on)
    thread.start()
    return thread


def test_calls_are_done_in_that_thread_and_what_they_raise_comes_back() -> None:
    thread = started([])
    assert thread.do(threading.current_thread).name == "site"
    with pytest.raises(ZeroDivisionError):
        thread.do(lambda: 1 / 0)
    assert thread.do(lambda: 3) == 3, "it goes on"
    thread.do(thread.close)
    thread.join()
    with pytest.raises(RuntimeError, match="the site is closed"):
        thread.do(lambda: 3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_a_failure_everybody_is_told_why() -> None:
    words: list[str] = []
    thread = started(words)
    thread.do(lambda: words.append("fail"))
    thread.join()
    with pytest.raises(RuntimeError, match="OSError: no space left"):
        thread.do(lambda: 3)
