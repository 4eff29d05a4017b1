"""Decides whether a receiver was lost by its own fault or by the message that it had. Pure.

UNAVAILABLE does not count as an attempt, so that an outage costs no message anything. A message that kills
each receiver, or that a working receiver never takes, has the same status, and must not be sent for ever. The
difference is what happens to other messages meanwhile.

| the call ended                                        | `Loss`    |
|-------------------------------------------------------|-----------|
| no connection: no receiver had the message            | UNREACHED |
| the receiver ended the connection on purpose: GOAWAY  | PLANNED   |
| without an error (its maximum age, a restart)         |           |
| the connection broke while the receiver had it        | DIED      |
| the receiver (or a proxy) answered UNAVAILABLE        | REFUSED   |

Rules (tests/dispatch/model/test_crash_suspicion.py)
1. UNREACHED and PLANNED are not held against the message; PLANNED does not count against the receiver either.
2. A loss is blamed on the message if the receiver took others since the message's last loss. If it took none,
   a death counts if the receiver answered a health check since then, and had no other message. A refusal
   counts if the message blocks a full tracker that is nearly finished. Any other loss is an outage.
3. After `SUSPECT_AFTER` deaths the message is a suspect. Suspects go last, once the receiver is known to
   live. One goes first, then twice as many at once, up to `MOST_AT_ONCE`, while none is lost. Suspects that
   were lost together go one at a time from then on, and that death is blamed on none of them. So a killer
   takes few receivers down, and innocent suspects are cleared in their turn.
4. A message that was blamed `GIVE_UP_AFTER` times has failed. A refusal may be temporary (a backend is away):
   unless the message blocks others, refusals must also have lasted for `patience_s`.
5. Giving up costs a credit and a token, like a verdict on the head of a line
   (`app.dispatch.model.head_of_line`). Messages that the receiver takes earn credits, up to `CREDIT_MAX`. So
   a receiver that dies of every message loses few of them to the DLQ.

`taken` and `heard` are running counts: messages that the receiver took, and answers to health checks.
"""

from __future__ import annotations

from enum import Enum

SUSPECT_AFTER = 2  # a restart loses everything in flight once
MOST_AT_ONCE = 32  # suspects; after a death this many go one at a time
GIVE_UP_AFTER = 4
FINISHED_SHARE = 0.9  # of a full tracker, in rule 2
UNKNOWN_AFTER_S = 10.0  # then a receiver without health checks is tried too

# Words of gRPC's C-core and of Envoy, in lower case; "not accepted" and "not sent" are Switchyard's
# (`app.dispatch.push.stream.link`).
NOT_SENT = "not sent on the stream"
_UNREACHED = (
    "failed to connect", "connections to all backends", "resolution failed", "no healthy upstream",
    "upstream connect error", "not accepted within", NOT_SENT,
)  # fmt: skip
_DIED = ("socket closed", "stream removed", "connection reset", "broken pipe", "keepalive", "goaway")
# C-core quotes a peer's GOAWAY, where error 0 is NO_ERROR; its own server writes the others into a status.
# Pings are this worker's, and no message is to blame for them.
_PLANNED = (
    "goaway received; error code: 0;", "max connection age", "max connection idle", "too_many_pings",
    "too many pings",
)  # fmt: skip


class Loss(Enum):
    UNREACHED = "unreached"
    PLANNED = "planned"
    DIED = "died"
    REFUSED = "refused"


_RESETS = {"connection termination": Loss.DIED, "remote reset": Loss.REFUSED}


def read_loss(details: str) -> Loss:
    """The kind of loss, by the details of a status UNAVAILABLE."""
    words = details.lower()
    if "upstream connect error or disconnect/reset" in words:  # Envoy: the reason follows
        for reason, loss in _RESETS.items():
            if f"reset reason: {reason}" in words:
                return loss
    if any(mark in words for mark in _UNREACHED):
        return Loss.UNREACHED
    if any(mark in words for mark in _PLANNED):
        return Loss.PLANNED
    return Loss.DIED if any(mark in words for mark in _DIED) else Loss.REFUSED


def is_planned_end(details: str) -> bool:
    """Whether the receiver ended the connection on purpose, by the details of a status UNAVAILABLE; also if
    the message was not sent yet."""
    return read_loss(details.removeprefix(f"{NOT_SENT}: ")) is Loss.PLANNED


class CrashSuspicion:
    """The losses of one message.

    Attributes:
        deaths: Connections that broke while the receiver had it.
        refusals: Answers UNAVAILABLE of the receiver.
        blamed: Losses that count against the message (rule 2).
        lost_s: When it was last lost.
    """

    __slots__ = ("_heard", "_taken", "_vouched", "blamed", "deaths", "lost_s", "refusals")

    def __init__(self) -> None:
        self.deaths = self.refusals = self.blamed = 0
        self.lost_s = float("-inf")
        self._taken = self._heard = 0
        self._vouched = False

    @property
    def is_suspect(self) -> bool:
        return self.deaths >= SUSPECT_AFTER

    @property
    def goes_alone(self) -> bool:
        """Whether it was lost as a suspect, perhaps with others (rule 3)."""
        return self.deaths > SUSPECT_AFTER

    def may_go(self, now_s: float, *, taken: int, heard: int, alone: bool) -> bool:
        """Whether a suspect may be sent: the receiver lives (rule 3). `alone`: it has no other message."""
        self._vouched = alone and heard != self._heard
        return heard != self._heard or taken != self._taken or now_s >= self.lost_s + UNKNOWN_AFTER_S

    def lost(
        self, loss: Loss, now_s: float, *, taken: int, heard: int, stuck: bool, together: bool = False
    ) -> None:
        """Takes the end of a call with UNAVAILABLE.

        Args:
            together: It was sent with other suspects.
            stuck: The tracker is full, and `FINISHED_SHARE` of it is finished.
        """
        if loss in (Loss.UNREACHED, Loss.PLANNED):
            return
        died = loss is Loss.DIED
        if not (died and together) and (taken != self._taken or (self._vouched if died else stuck)):
            self.blamed += 1
        self.deaths += died
        self.refusals += not died
        self._taken, self._heard, self._vouched = taken, heard, False
        self.lost_s = now_s

    def has_failed(self, *, stuck: bool, age_s: float, patience_s: float) -> bool:
        """Rule 4; the message was first sent `age_s` ago."""
        return self.blamed >= GIVE_UP_AFTER and (self.deaths >= self.refusals or stuck or age_s >= patience_s)

    @property
    def reason(self) -> str:
        if self.deaths >= self.refusals:
            return f"its receiver was lost {self.deaths} times while it had this message"
        return f"its receiver answered UNAVAILABLE {self.refusals} times, and took other messages meanwhile"
