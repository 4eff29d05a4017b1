"""Whose fault it was that a receiver was lost: its own, or the message's that it had.

UNAVAILABLE burns no attempt, so that an outage costs no message anything. A message that kills each receiver
that takes it, or that a working receiver never takes, looks the same from outside, and must not be sent for
ever. What tells them apart is what befalls others meanwhile.

| the call ended                                        | `Loss`    |
|-------------------------------------------------------|-----------|
| no connection, nobody had it                          | UNREACHED |
| the receiver ended the connection on purpose: GOAWAY  | PLANNED   |
| without an error (its maximum age, a restart)         |           |
| the connection broke while the receiver had it        | DIED      |
| the receiver (or a proxy) said UNAVAILABLE             | REFUSED   |

Rules
1. Nothing is held against a message that reached nobody, or whose connection was ended on purpose: that says
   nothing of the receiver either.
2. A loss counts as `blamed` when others were taken since the message's last one. When no others are: a death
   counts if the receiver's health was heard since the last one, and it had nothing else; a refusal
   counts if the message blocks a full tracker nearly all of which is finished. All else is an outage.
3. After `SUSPECT_AFTER` deaths it is a suspect: it goes last, and only once the receiver is known to live;
   one first, then twice as many at once, up to `MOST_AT_ONCE`, for as long as none of them is lost. Those
   that were lost together go one at a time from then on, and their common death is held against none of
   them. So a killer takes few down with it, and what was lost beside it is acquitted in its turn.
4. Blamed `GIVE_UP_AFTER` times it failed, and is treated as such. A refusal is a receiver's word and may be
   of the moment (a part of what it needs is away): unless the message blocks others, that is so only once
   it has lasted `patience_s`.
5. Giving up is paid for like a verdict on the head of a line (`app.dispatch.model.head_of_line`): what the
   receiver takes earns `CREDIT_MAX` at most; one that dies of every message has few of them flushed away.

Pure. `taken` and `heard` count what the receiver took, and answers to questions for its health, so far.
"""

from __future__ import annotations

from enum import Enum

SUSPECT_AFTER = 2  # a receiver that restarts loses everything in flight once
MOST_AT_ONCE = 32  # suspects: so many go one at a time when there is a killer among them
GIVE_UP_AFTER = 4
FINISHED_SHARE = 0.9  # of a full tracker, in rule 2
UNKNOWN_AFTER_S = (
    10.0  # a receiver whose health is never heard is tried all the same; rule 2 counts none of it
)

# Words of gRPC's C-core and of Envoy, in lower case; "not accepted", "not sent" are our own
# (`app.dispatch.push.stream.link`).
NOT_SENT = "not sent on the stream"
_UNREACHED = (
    "failed to connect", "connections to all backends", "resolution failed", "no healthy upstream",
    "upstream connect error", "not accepted within", NOT_SENT,
)  # fmt: skip
_DIED = ("socket closed", "stream removed", "connection reset", "broken pipe", "keepalive", "goaway")
# C core quotes a peer's GOAWAY, error 0 being NO_ERROR; its own server says the rest in a status.
_PLANNED = ("goaway received; error code: 0;", "max connection age", "max connection idle")


class Loss(Enum):
    """See the module's table."""

    UNREACHED = "unreached"
    PLANNED = "planned"
    DIED = "died"
    REFUSED = "refused"


_RESETS = {"connection termination": Loss.DIED, "remote reset": Loss.REFUSED}


def read_loss(details: str) -> Loss:
    """How a call ended whose status is UNAVAILABLE, by its words."""
    words = details.lower()
    if "upstream connect error or disconnect/reset" in words:  # Envoy: only what follows tells which of these
        for reason, loss in _RESETS.items():
            if f"reset reason: {reason}" in words:
                return loss
    if any(mark in words for mark in _UNREACHED):
        return Loss.UNREACHED
    if any(mark in words for mark in _PLANNED):
        return Loss.PLANNED
    return Loss.DIED if any(mark in words for mark in _DIED) else Loss.REFUSED


def is_planned_end(details: str) -> bool:
    """Whether the receiver ended the connection on purpose, by the words of a status UNAVAILABLE: also where
    the message was not sent yet."""
    return read_loss(details.removeprefix(f"{NOT_SENT}: ")) is Loss.PLANNED


class CrashSuspicion:
    """What is held against one message.

    Attributes:
        deaths: connections that broke while the receiver had it.
        blamed: losses that were its own fault, as far as can be known (rule 2).
        lost_s: when it was last lost.
    """

    __slots__ = ("_heard", "_taken", "_vouched", "blamed", "deaths", "lost_s", "refusals")

    def __init__(self) -> None:
        self.deaths = self.refusals = self.blamed = 0
        self.lost_s = float("-inf")
        self._taken = self._heard = 0
        self._vouched = False

    @property
    def is_suspect(self) -> bool:
        """Rule 3."""
        return self.deaths >= SUSPECT_AFTER

    @property
    def goes_alone(self) -> bool:
        """It was lost as a suspect, perhaps beside others (rule 3)."""
        return self.deaths > SUSPECT_AFTER

    def may_go(self, now_s: float, *, taken: int, heard: int, alone: bool) -> bool:
        """Whether a suspect may be sent now, `alone` or beside others: the receiver lives (rule 3)."""
        self._vouched = alone and heard != self._heard
        return heard != self._heard or taken != self._taken or now_s >= self.lost_s + UNKNOWN_AFTER_S

    def lost(
        self, loss: Loss, now_s: float, *, taken: int, heard: int, stuck: bool, together: bool = False
    ) -> None:
        """The message's call ended with UNAVAILABLE.

        Args:
            together: it was out as one of several suspects.
            stuck: nothing more is read, and `FINISHED_SHARE` of the tracker is finished.
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
        """Rule 4, for a message first sent `age_s` ago."""
        return self.blamed >= GIVE_UP_AFTER and (self.deaths >= self.refusals or stuck or age_s >= patience_s)

    @property
    def reason(self) -> str:
        """For people."""
        if self.deaths >= self.refusals:
            return f"its receiver was lost {self.deaths} times while it had this message"
        return f"its receiver answered UNAVAILABLE {self.refusals} times, and took others meanwhile"
