"""The probe distinguishes a serving broker from any other state of a port."""

from __future__ import annotations

import socket

from app.dev.yard.broker import choose_ports
from app.dev.yard.probe import answers


def test_a_real_broker_answers(bootstrap: str) -> None:
    assert answers(bootstrap)


def test_a_closed_port_is_no_broker() -> None:
    (port,) = choose_ports(1)
    assert not answers(f"127.0.0.1:{port}")


def test_an_open_port_that_says_nothing_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not answers(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
