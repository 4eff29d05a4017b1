"""A message is given up for what it did to its receiver, never for an outage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.crash_suspicion import (
    GIVE_UP_AFTER,
    SUSPECT_AFTER,
    UNKNOWN_AFTER_S,
    CrashSuspicion,
    Loss,
    read_loss,
)

ENVOY = "upstream connect error or disconnect/reset before headers."


def failed(suspicion: CrashSuspicion, *, stuck: bool = False, age_s: float = 1.0) -> bool:
    return suspicion.has_failed(stuck=stuck, age_s=age_s, patience_s=300.0)


@pytest.mark.parametrize(
    ("details", "loss"),
    [
        ("failed to connect to all addresses; last error: UNKNOWN", Loss.UNREACHED),
        ("connections to all backends failing; recvmsg:Connection reset by peer (104)", Loss.UNREACHED),
        ("the stream was not accepted within 5 s", Loss.UNREACHED),
        ("Stream removed (Socket closed)", Loss.DIED),
        ("recvmsg:Connection reset by peer", Loss.DIED),
        ("not sent on the stream: Socket closed", Loss.UNREACHED),
        (f"{ENVOY} reset reason: connection termination", Loss.DIED),
        (f"{ENVOY} retried and the latest reset reason: connection termination", Loss.DIED),
        (f"{ENVOY} reset reason: remote reset", Loss.REFUSED),
        (f"{ENVOY} reset reason: remote refused stream reset", Loss.UNREACHED),
        (f"{ENVOY} reset reason: remote connection failure", Loss.UNREACHED),
        ("max connection age", Loss.PLANNED),
        (
            "Stream removed (Socket closed (GOAWAY received; Error code: 0; Debug Text: max_age))",
            Loss.PLANNED,
        ),
        ("Socket closed (GOAWAY received; Error code: 11; Debug Text: too_many_pings)", Loss.PLANNED),
        ("Socket closed (GOAWAY received; Error code: 2; Debug Text: internal)", Loss.DIED),
        (
            "failed to connect to all addresses; last error: GOAWAY received; Error code: 0; Debug Text: ",
            Loss.UNREACHED,
        ),
        ("our database is away", Loss.REFUSED),
        ("", Loss.REFUSED),
    ],
)
def test_the_details_of_a_status_give_the_kind_of_loss(details: str, loss: Loss) -> None:
    assert read_loss(details) is loss


def test_a_killer_is_given_up_when_the_receiver_takes_others_between_its_kills() -> None:
    suspicion = CrashSuspicion()
    for kills in range(1, GIVE_UP_AFTER + 1):
        assert not failed(suspicion)
        suspicion.lost(Loss.DIED, 10.0 * kills, taken=kills, heard=0, stuck=False)
    assert failed(suspicion)
    assert suspicion.reason == f"its receiver was lost {GIVE_UP_AFTER} times while it had this message"


def test_a_lone_killer_is_given_up_when_health_checks_succeed_between_its_kills() -> None:
    suspicion = CrashSuspicion()
    for kills in range(SUSPECT_AFTER + GIVE_UP_AFTER):
        if suspicion.is_suspect:
            assert not suspicion.may_go(kills, taken=0, heard=kills, alone=True)
            assert suspicion.may_go(kills, taken=0, heard=kills + 1, alone=True)
        suspicion.lost(Loss.DIED, kills, taken=0, heard=kills + 1, stuck=False)
    assert failed(suspicion)


def test_suspects_that_are_lost_together_are_not_blamed_and_go_alone_afterwards() -> None:
    suspicion = CrashSuspicion()
    for number in range(SUSPECT_AFTER):
        suspicion.lost(Loss.DIED, number, taken=0, heard=0, stuck=False)
    assert suspicion.is_suspect
    assert not suspicion.goes_alone
    suspicion.lost(Loss.DIED, 5.0, taken=7, heard=1, stuck=False, together=True)
    assert suspicion.goes_alone
    assert suspicion.blamed == 0
    suspicion.lost(Loss.DIED, 6.0, taken=9, heard=2, stuck=False)
    assert suspicion.blamed == 1


def test_a_refusal_counts_at_once_only_if_the_message_blocks_others() -> None:
    suspicion = CrashSuspicion()
    for _ in range(GIVE_UP_AFTER):
        suspicion.lost(Loss.REFUSED, 1.0, taken=0, heard=0, stuck=True)
    assert failed(suspicion, stuck=True)
    assert failed(suspicion, age_s=300.0)
    assert not failed(suspicion, age_s=299.0)


@given(st.lists(st.sampled_from(Loss), max_size=50), st.booleans())
def test_an_outage_gives_no_message_up(losses: list[Loss], go: bool) -> None:
    suspicion = CrashSuspicion()
    for at_s, loss in enumerate(losses):
        if go:
            suspicion.may_go(at_s * UNKNOWN_AFTER_S, taken=0, heard=0, alone=True)
        suspicion.lost(loss, at_s * UNKNOWN_AFTER_S, taken=0, heard=0, stuck=False)
    assert suspicion.blamed == 0
    assert not failed(suspicion, stuck=True, age_s=1e9)


@given(st.integers(0, 50))
def test_a_message_that_reached_no_receiver_is_never_a_suspect(times: int) -> None:
    suspicion = CrashSuspicion()
    for number in range(times):
        suspicion.lost(Loss.UNREACHED, number, taken=number, heard=number, stuck=True)
    assert not suspicion.is_suspect
    assert suspicion.blamed == 0
