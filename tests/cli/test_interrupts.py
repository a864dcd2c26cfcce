import signal
import sys
import time

import pytest

from rlpto.io.interrupts import interrupts_kept

WAIT_S = 30.0


class Interrupted:
    """Ctrl-C comes while Python takes an object apart, which passes no exception on."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@interrupts_kept()
def drop_and_go_on() -> None:
    doomed = Interrupted()
    del doomed
    time.sleep(WAIT_S)


def test_an_interrupt_that_is_raised_where_nobody_can_catch_it_comes_again() -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        drop_and_go_on()
    assert time.monotonic() - began < WAIT_S, "it does not end a wait"


def test_other_exceptions_there_are_printed_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: printed.append(lost.exc_type))

    class Broken:
        def __del__(self) -> None:
            raise ZeroDivisionError

    with interrupts_kept():
        broken = Broken()
        del broken
    assert printed == [ZeroDivisionError]
