"""An ingress that answers for an absent receiver: it is away, and no message is to blame."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.dev.demo.stage import free_port, wait_until
from app.kernel.grpc_status import UNAVAILABLE
from tests.dispatch.push.grpc_servers import CountingCaller, unary_target
from tests.dispatch.push.stream_servers import RecordingSender, rows

pytestmark = pytest.mark.each_transport

CONFIG = """
daemon off; pid %(folder)s/pid; error_log %(folder)s/error.log; worker_processes 1;
events {}
http {
  access_log off; client_body_temp_path %(folder)s/body; proxy_temp_path %(folder)s/proxy;
  fastcgi_temp_path %(folder)s/fastcgi; uwsgi_temp_path %(folder)s/uwsgi; scgi_temp_path %(folder)s/scgi;
  server { listen 127.0.0.1:%(port)d http2; location / { return %(status)d; } }
}
"""


@contextmanager
def ingress(folder: Path, status: int) -> Iterator[str]:
    """The address of an nginx that answers every request so."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")  # Debian's place
    if found is None:
        pytest.skip("nginx is not here; as root: apt-get install nginx-light")
    port, config = free_port(), folder / "nginx.conf"
    config.write_text(CONFIG % {"folder": folder, "port": port, "status": status})
    process = subprocess.Popen([found, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")])
    try:
        wait_until((folder / "pid").exists, 60, (folder / "error.log").read_text)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("status", [302, 401, 403, 404, 405])
async def test_an_http_answer_without_a_grpc_status_means_that_no_receiver_is_there(
    tmp_path: Path, status: int
) -> None:
    with ingress(tmp_path, status) as address:
        target = unary_target(address, "/billing.Receiver/Take")
        result = await CountingCaller(target)()
        await target.close()
    assert result.code == UNAVAILABLE
    assert result.details.startswith(f"an HTTP server without gRPC answered {status}; check spec.target")


@pytest.mark.parametrize("status", [400, 413, 500])
async def test_an_http_answer_that_may_be_about_the_message_is_not_an_absent_receiver(
    tmp_path: Path, status: int
) -> None:
    with ingress(tmp_path, status) as address:
        target = unary_target(address, "/billing.Receiver/Take")
        result = await CountingCaller(target)()
        await target.close()
    assert result.code != UNAVAILABLE


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_stream_that_an_ingress_refuses_has_no_receiver_either(tmp_path: Path, status: int) -> None:
    with ingress(tmp_path, status) as address:
        port = int(address.rpartition(":")[2])
        sender = RecordingSender(port)
        sender.send(rows(3))
        await sender.all_reported()
        await sender.target.close()
    assert sender.codes(0) == [UNAVAILABLE] * 3
