"""A secured yard: clients log in by SASL PLAIN, and may do what access control lists allow, nothing else.

The controllers' own listeners stay as they are, on loopback: who comes by them has no name and is trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ADMIN = "admin"
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@dataclass(frozen=True, slots=True)
class YardSecurity:
    """Who may log in.

    Attributes:
        users: name -> password, `ADMIN` among them, who may do everything. Letters and digits only, as they
            stand in a configuration file.

    Raises:
        ValueError: a name or a password has other characters, or there is no `ADMIN`.
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
        """The name and the password of who may do everything."""
        return ADMIN, self.users[ADMIN]

    def properties(self) -> str:
        """What a broker's configuration says of it."""
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
