"""Decides which requests the server accepts: by Host, by the page that sends them, and by the requested
worker.

The server has no authentication, and another site's page in the operator's browser must not use it. So it
refuses a foreign Host (DNS rebinding), a foreign Origin on a change, and API requests that the browser marks
as another site's: even a GET may read a topic or an archive for minutes. A browser that sends none of the
marks is not recognised, and `/health/` answers any Host. Host and Origin may be those of a reverse proxy in
the configuration (`web.public`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from aiohttp import web

from app.config.web_address import EVERYWHERE, Web, normal_origin
from app.web.http.responses import ApiError
from app.worker.members.peer_requests import INTENDED_WORKER_HEADER

SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
OWN_SITE = {"same-origin", "none"}  # none: typed, or a bookmark; same-site may be another port
PROBES = "/health/"  # orchestrators use any name; the answers have the worker's name and state only


class AccessControl:
    """`worker` gives this worker's id, "" until it has one."""

    def __init__(self, settings: Web, worker: Callable[[], str]) -> None:
        self._host = settings.host.strip("[]").lower()
        self._public = frozenset(settings.public)
        self._public_names = {urlsplit(origin).hostname for origin in settings.public}
        self._names = {self._host, "localhost", urlsplit(settings.advertised).hostname} - {"", None}
        if self._host in EVERYWHERE:
            self._names.add(socket.gethostname().lower())
        self.worker = worker

    def check(self, request: web.Request) -> None:
        """Raises ApiError for a request that is not for this server or this worker, or comes from another
        site."""
        name = _name_of(request.host)
        if not (self._is_own(name) or name in self._public_names or request.path.startswith(PROBES)):
            raise ApiError(
                421, "Unknown host",
                "this server does not answer for that Host; use its own address, or name the proxy's in "
                "web.public: [https://...]",
            )  # fmt: skip
        meant, worker = request.headers.get(INTENDED_WORKER_HEADER, ""), self.worker()
        if meant and worker and meant != worker:
            detail = f"this is {worker}, not {meant[:200]}; correct web.advertise on that worker's host"
            raise ApiError(421, "Another worker", detail)
        origin = request.headers.get("Origin")
        if request.method not in SAFE_METHODS and origin and not self._is_own_page(origin, request.host):
            raise ApiError(
                403, "Foreign origin",
                "changes are taken from this console's own pages only; name the proxy's origin in "
                "web.public: [https://...]",
            )  # fmt: skip
        if request.path.startswith("/api/") and self._is_cross_site(request):
            raise ApiError(
                403, "Cross-site request", "the API answers this console's own pages, and programs, only"
            )

    def _is_own(self, name: str) -> bool:
        """Whether a Host is this server's own.

        Another site can make its own name resolve to this host, but cannot forge an address. So where the
        server listens on every address, it takes any address as its own.
        """
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._host in EVERYWHERE

    def _is_own_page(self, page: str, host: str) -> bool:
        """Whether a page (URL or origin) is this console's, reached at `host` or through a proxy."""
        try:
            origin, place = normal_origin(page), urlsplit(page).netloc
        except ValueError:
            return False
        # A public name counts only with the configured scheme and port; other pages are not this console's.
        return origin in self._public or (place == host and self._is_own(_name_of(host)))

    def _is_cross_site(self, request: web.Request) -> bool:
        """Whether another site's page makes a browser send the request, or leads it here.

        Browsers say so in Sec-Fetch-Site where they trust the connection (HTTPS, loopback), otherwise
        often in Origin or Referer. This console's pages send neither with a GET, and programs send none of
        the three.
        """
        site = request.headers.get("Sec-Fetch-Site")
        if site is not None:
            return site not in OWN_SITE
        pages = [request.headers.get(name) for name in ("Origin", "Referer")]
        foreign = any(not self._is_own_page(page, request.host) for page in pages if page)
        return request.method in SAFE_METHODS and foreign


def _name_of(host: str) -> str:
    """The name or address in a Host header, lower case, without brackets and port; "" for an invalid one."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
