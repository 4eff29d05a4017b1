"""The console's pages: one shell, filled in the browser from the API. The pages load nothing from another
host.

All content is untrusted. It reaches the document as text nodes only (assets/dom.js), never as markup.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

ASSETS = Path(__file__).parent / "assets"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".html": "text/html"}


class Pages:
    """Serves the shell for every page, and its assets."""

    def __init__(self) -> None:
        self._assets = {path.name: path.read_bytes() for path in ASSETS.iterdir() if path.suffix in KINDS}

    def routes(self) -> list[web.RouteDef]:
        """All pages."""
        partition = "/workloads/{group}/{topic}/partitions/{partition}"
        pages = ["/", "/workloads", "/workloads/{group}/{topic}", partition]
        pages += ["/routes", "/routes/{name}", "/placement", "/failover", "/audit", "/audit/{topic}"]
        pages += ["/alerts", "/alerts/{name}", "/activity"]
        return [web.get(page, self.shell) for page in pages] + [web.get("/assets/{name}", self.asset)]

    async def shell(self, _: web.Request) -> web.Response:
        """The page without its content."""
        return self._answer("console.html")

    async def asset(self, request: web.Request) -> web.Response:
        """A stylesheet, script or picture."""
        name = request.match_info["name"]
        if name not in self._assets:
            raise web.HTTPNotFound(text=f"there is no asset {name[:80]}")
        return self._answer(name)

    def _answer(self, name: str) -> web.Response:
        return web.Response(
            body=self._assets[name],
            content_type=KINDS[Path(name).suffix],
            charset="utf-8",
            headers={"Cache-Control": "no-cache"},
        )
