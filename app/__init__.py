"""Switchyard: one Faust application that pushes, copies, proves and moves Kafka traffic.

`app`, which `faust -A app worker` loads, is built on first use (PEP 562). So an import of `app.kernel` or
`app.dev.yard` loads no Faust and needs no configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.main import SwitchyardApp

    app: SwitchyardApp

__all__ = ["app"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "app":
        from app.main import build

        application = build()
        globals()["app"] = application
        return application
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
