"""A secured yard: clients log in by SASL PLAIN, and may do only what access control lists allow.

The controllers' own listeners stay open on loopback: their clients have no name and are trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ADMIN = "admin"
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@dataclass(frozen=True, slots=True)
class YardSecurity:
    """The users of a secured yard.

    Attributes:
        users: Name -> password, with `ADMIN`, who may do everything. Letters and digits only, because they
            are written into a configuration file.

    Raises:
        ValueError: A name or password has other characters, or there is no `ADMIN`.
    """

    users: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        if ADMIN not in self.users:
            raise ValueError(f"users: there is no {ADMIN!r}; name one, with a password")
        for name, password in self.users.items():
            if not (name.isalnum() and password.isalnum()):
                raise ValueError(f"users: {name!r}: use letters and digits for the name and the password")

    @property
    def login(self) -> tuple[str, str]:
        """The administrator's name and password."""
        return ADMIN, self.users[ADMIN]

    def properties(self) -> str:
        """A broker's settings for these users."""
        name, password = self.login
        known = " ".join(f'user_{one}="{word}"' for one, word in self.users.items())
        return (
            "sasl.enabled.mechanisms=PLAIN\n"
            "sasl.mechanism.inter.broker.protocol=PLAIN\n"
            "listener.name.broker.plain.sasl.jaas.config="
            f'{_MODULE} required username="{name}" password="{password}" {known};\n'
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            f"super.users=User:{ADMIN};User:ANONYMOUS\n"
            "allow.everyone.if.no.acl.found=false\n"
        )
