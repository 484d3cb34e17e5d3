"""What the switchboard of several processes answers to their lines."""

import socket
import time

import pytest

from tests import own_process
from transformer_xl import errors
from transformer_xl.processes import switchboard


class Caller:
  """A process on its line."""

  def __init__(self, port, number, *, of=2, mistake="", status=2):
    connection = socket.create_connection(("localhost", port))
    self.line = switchboard.Line(connection)
    self.line.send(process=number, of=of, mistake=mistake, status=status)
    self._heard = []

  def hears(self, name):
    """The next message that has a name."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
      for index, message in enumerate(self._heard):
        if name in message:
          return self._heard.pop(index)
      self._heard += self.line.receive()
    raise AssertionError(self._heard)


@pytest.fixture
def port():
  return own_process.free_port()


def joined(port, count=2):
  """A switchboard on which all processes are there."""
  board = switchboard.Switchboard(port, count)
  callers = [Caller(port, number, of=count) for number in range(count)]
  for caller in callers:
    caller.hears("joined")
  return board, callers


def test_it_says_who_is_missing_and_leaves_the_port_to_jax_when_all_are_there(
  port,
):
  board = switchboard.Switchboard(port, 3)
  first = Caller(port, 0, of=3)
  assert first.hears("missing")["missing"] == [1, 2]
  with pytest.raises(errors.UserError, match=f"listen on port {port} \\(Addr"):
    switchboard.Switchboard(port, 3)
  second, third = (Caller(port, number, of=3) for number in (1, 2))
  for caller in (first, second, third):
    caller.hears("joined")
  with socket.create_server(("localhost", port)):
    pass
  assert not board.is_over.is_set()


def test_one_that_is_lost_before_all_are_there_may_come_again(port):
  switchboard.Switchboard(port, 2)
  Caller(port, 1).line.close()
  first = Caller(port, 0)
  while first.hears("missing")["missing"] != [1]:
    pass
  Caller(port, 1)
  first.hears("joined")


def test_what_is_no_process_is_hung_up_on(port):
  switchboard.Switchboard(port, 2)
  first = Caller(port, 0)
  first.hears("missing")
  for words in (b"GET / HTTP/1.1\r\n", b"[]\n", b'{"process": 1}\n', b"{}\n"):
    with socket.create_connection(("localhost", port), timeout=30) as stranger:
      stranger.sendall(words)
      assert stranger.recv(1) == b""
  Caller(port, 1)
  first.hears("joined")


@pytest.mark.parametrize(
  ("second", "text", "status"),
  [
    ({"number": 0}, "two processes were started as process 0", 2),
    ({"number": 1, "of": 4}, "process 1 was started as one of 4 and", 2),
    ({"number": 1, "mistake": "no such file"}, "process 1: no such file", 2),
    ({"number": 1, "mistake": "disk full", "status": 1}, "disk full", 1),
  ],
)
def test_a_mistake_before_all_are_there_is_told_to_all(
  port, monkeypatch, second, text, status
):
  monkeypatch.setattr(switchboard, "REFUSAL_SECONDS", 1.0)
  board = switchboard.Switchboard(port, 3)
  first = Caller(port, 0, of=3)
  first.hears("missing")
  callers = [first, Caller(port, **{"of": 3} | second)]
  callers.append(Caller(port, 2, of=3))  # It comes later.
  for caller in callers:
    answer = caller.hears("refused")
    assert text in answer["refused"]
    assert answer["status"] == status
  assert board.is_over.wait(30)


def test_processes_stop_at_a_poll_that_none_has_passed(port):
  _, callers = joined(port, 3)
  callers[1].line.send(stop=True)
  callers[2].line.send(stop=True)
  for caller, polls in zip(callers, (7, 9, 8), strict=True):
    caller.hears("stop")
    caller.line.send(polls=polls)
  assert [caller.hears("stop_at")["stop_at"] for caller in callers] == 3 * [10]


def test_the_first_reason_to_end_is_the_one_that_is_told(port):
  board, (first, second) = joined(port)
  second.line.send(left=2, reason="a file is missing")
  first.line.send(left=1, reason="it cannot go on")
  news = first.hears("news")
  assert news == {"news": "process 1 ended: a file is missing", "status": 2}
  assert not board.is_left_alone.is_set()
  second.line.close()
  assert board.is_left_alone.wait(30)


def test_nobody_is_missed_once_all_have_left(port):
  board, (first, second) = joined(port)
  first.line.send(left=0, reason="")
  second.line.send(left=0, reason="")
  for caller in (first, second):
    caller.hears("over")
    caller.line.close()
  assert board.is_over.wait(30)


def test_one_that_is_killed_after_it_has_left_keeps_the_others_waiting(port):
  _, (first, second) = joined(port)
  second.line.send(left=0, reason="")
  second.line.close()
  assert first.hears("news")["news"].startswith("process 1 is gone; the same")
