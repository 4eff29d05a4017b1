"""A plain HTTP client of a console that serves a fake runtime."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any
from urllib.parse import urlsplit

from tests.web.runtime_fake import ENOUGH_S, FakeRuntime


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = dict(response.getheaders())
        self.text = response.read().decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Console:
    """The console's server and the fake runtime that it serves."""

    def __init__(self, url: str, fed: FakeRuntime) -> None:
        self.url = url
        self.fed = fed

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=ENOUGH_S)
        data = body if isinstance(body, bytes | str | None) else json.dumps(body)
        try:
            request_headers = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, data, request_headers)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def metrics(self) -> str:
        """The metrics as Prometheus reads them, without the label `region` of each series."""
        text = self.ask("GET", "/metrics").text
        return re.sub(r'region="[^"]*",?', "", text).replace(",}", "}").replace("{}", "")
