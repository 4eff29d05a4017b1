"""Connections: what names mean, and that an opening ends with a usable connection or with no open socket.

Servers run in threads with blocking sockets, so they share no code with what is tested. All tests that
connect run on asyncio's event loop and on uvloop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

from app.grpc_client import connect
from app.grpc_client.address import SCHEMES, Address, Proxy
from app.grpc_client.connect import ConnectError, open_connection
from app.grpc_client.tls import NO_TLS, tls_context

pytestmark = [  # pyproject.toml ignores both, because other tests kill brokers
    pytest.mark.filterwarnings("error::ResourceWarning"),
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
]

T = TypeVar("T")
BOUND_S = 20.0  # of a wait that should end at once
SHORT_S = 0.1  # of a wait that should reach its limit
LIMIT_S = 2.0  # of an opening that should reach its limit in its last step, on a busy machine, too
HELLO = b"hello from the server"
FOUND = b"HTTP/1.1 200 Connection established\r\n\r\n"
SETTINGS = bytes.fromhex("000000040000000000")  # an HTTP/2 server's first frame


# Names of servers

NAMES = [
    ("orders:50051", Address("orders", 50051), "orders:50051"),
    ("orders.example.:443", Address("orders.example.", 443), "orders.example.:443"),
    ("my_service-1:1", Address("my_service-1", 1), "my_service-1:1"),
    ("10.0.0.1:65535", Address("10.0.0.1", 65535), "10.0.0.1:65535"),
    ("[::1]:80", Address("::1", 80), "[::1]:80"),
    ("[fe80::1%eth0]:80", Address("fe80::1%eth0", 80), "[fe80::1]:80"),
    ("münchen.example:80", Address("münchen.example", 80), "xn--mnchen-3ya.example:80"),
    ("dns:orders:80", Address("orders", 80), "orders:80"),
    ("dns:///orders:80", Address("orders", 80), "orders:80"),
    ("DNS:///orders:80", Address("orders", 80), "orders:80"),
    ("dns:///[::1]:80", Address("::1", 80), "[::1]:80"),
    ("dns:dns:80", Address("dns", 80), "dns:80"),
    ("ipv4:1.2.3.4:80", Address("1.2.3.4", 80), "1.2.3.4:80"),
    ("ipv6:[::1]:80", Address("::1", 80), "[::1]:80"),
    ("ipv6:%5B::1%5D:80", Address("::1", 80), "[::1]:80"),
    ("ipv6:[fe80::1%25eth0]:80", Address("fe80::1%eth0", 80), "[fe80::1]:80"),
    ("unix:run/orders.sock", Address(path="run/orders.sock"), "localhost"),
    ("unix:/run/orders.sock", Address(path="/run/orders.sock"), "localhost"),
    ("unix:///run/orders.sock", Address(path="/run/orders.sock"), "localhost"),
    ("unix:/run/my%20orders@1", Address(path="/run/my orders@1"), "localhost"),
    ("unix-abstract:orders", Address(path="\0orders"), "localhost"),
    ("unix-abstract://orders", Address(path="\0//orders"), "localhost"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "address", "authority"), NAMES)
def test_names_of_grpc_are_addresses(text: str, address: Address, authority: str) -> None:
    assert Address.parse(text) == address
    assert address.authority == authority
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no port; write host:port"),
        ("orders", "address 'orders': it has no port; write host:port"),
        ("orders:", "it has no port; write host:port"),
        (":80", "host: it is empty; write a name"),
        ("orders:0", "port 0: write a number from 1 to 65535"),
        ("orders:65536", "port 65536: write a number from 1 to 65535"),
        ("orders:http", "port 'http': write a number"),
        ("orders:١", "port '١': write a number"),  # noqa: RUF001 - a digit of another script
        ("orders:1234567", "port '1234567': write a number"),
        ("::1", "address '::1': an IPv6 address needs brackets; write [::1]:port"),
        ("::1:80", "an IPv6 address needs brackets"),
        ("[::1]", "it has no port"),
        ("[::1]x:80", "after the brackets comes the port"),
        ("[orders]:80", "brackets enclose an IPv6 address"),
        ("[::1:80", "no port"),
        ("[12345::]:80", "it is no IPv6 address"),
        ("[fe80::1%a/b]:80", "it is no IPv6 address"),
        ("http://orders:80", "its scheme is unknown here; write host:port"),
        ("https://orders:80", "its scheme is unknown here; write host:port"),
        ("xds:///orders", "its scheme is unknown here; write host:port"),
        ("dns://8.8.8.8/orders:80", "it names a DNS server; write dns:///host:port"),
        ("dns://orders:80", "it names a DNS server; write dns:///host:port"),
        ("dns:///orders", "address 'orders': it has no port"),
        ("ipv4:orders:80", "it has no IP address; write ipv4:address:port"),
        ("ipv4:1.2.3.4:80,1.2.3.5:80", "write [::1]:port"),
        ("ipv6:1.2.3.4:80", "it has no IP address; write ipv6:address:port"),
        ("unix:", "it has no path; write unix:path"),
        ("unix://run/orders.sock", "it names a host; write unix:///path"),
        ("unix-abstract:", "it is empty"),
        ("unix:a%00b", "control characters"),
        ("unix:a%ffb", "control characters"),
        ("unix: a", "blanks around it"),
        ("unix:" + 108 * "a", "at most 107 bytes; shorten it"),
        ("my orders:80", "host 'my orders': it is no name of a host; write letters, digits"),
        (" orders:80", "it is no name of a host"),
        ("orders\n:80", "it is no name of a host"),
        ("orders/path:80", "it is no name of a host"),
        ("orders%41:80", "it is no name of a host"),
        ("a..b:80", "it is no name of a host"),
        (64 * "a" + ":80", "it is no name of a host"),
        (254 * "a" + ":80", "longer than 253 letters"),
        ("\uff20:80", "it is no name of a host"),  # resolvers would read it as "@"
    ],
)  # fmt: skip
def test_other_names_are_refused_with_a_remedy(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Address.parse(text)


@pytest.mark.parametrize(
    "text", ["me:s3cret@orders:80", "dns:///me:s3cret@orders:80", "dns:me:s3cret%40orders"]
)
def test_a_password_in_an_address_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="no user and no password") as caught:
        Address.parse(text)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [{}, {"host": "a"}, {"port": 1}, {"host": "a", "port": 1, "path": "/a"}, {"host": "[::1]", "port": 1}],
)
def test_an_address_is_one_place(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"write|name one place"):
        Address(**fields)


parts = st.sampled_from(
    [
        "dns",
        "ipv4",
        "ipv6",
        "unix",
        "unix-abstract",
        ":",
        "/",
        "//",
        "///",
        "[",
        "]",
        "%",
        "%25",
        "@",
        ".",
        "::1",
    ]
)
texts = st.text() | st.lists(parts | st.text(max_size=3) | st.integers(0, 70_000).map(str)).map("".join)


@given(texts)
@example("dns:dns:80")
@example("unix:%25")
@example("unix:////a")
@example("unix-abstract:%2541")
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = Address.parse(text)
    except ValueError as error:
        why = str(error)
    else:
        assert Address.parse(str(address)) == address
        assert address.authority.isascii()
        return
    assert why.isprintable()
    assert len(why) < 600


labels = st.text(st.sampled_from("aZ0-_ü漢"), min_size=1, max_size=8)
ports = st.integers(1, 65535)
addresses = (
    st.builds(Address, st.lists(labels, min_size=1, max_size=4).map(".".join), ports)
    | st.builds(Address, st.ip_addresses().map(str), ports)
    | st.builds(Address, st.sampled_from(sorted(SCHEMES)), ports)
    | st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=25).map(
        lambda path: Address(path=path)
    )
)


@given(addresses, st.booleans())
def test_an_address_is_read_from_its_text(address: Address, is_abstract: bool) -> None:
    if is_abstract and address.path:
        address = Address(path=f"\0{address.path}")
    assert Address.parse(str(address)) == address


# Proxies of the environment

ORDERS = Address("www.orders.example", 80)
PROXY = Proxy("proxy", 3128)


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({}, None),
        ({"grpc_proxy": "http://proxy:3128", "https_proxy": "http://other:1"}, PROXY),
        ({"https_proxy": "http://proxy:3128", "http_proxy": "http://other:1"}, PROXY),
        ({"http_proxy": "http://proxy:3128"}, PROXY),
        ({"HTTPS_PROXY": "http://proxy:3128"}, None),
        ({"grpc_proxy": "", "https_proxy": "http://proxy:3128"}, None),
        ({"https_proxy": "HTTP://proxy:3128/path?query"}, PROXY),
        ({"https_proxy": "http://[::1]:3128"}, Proxy("::1", 3128)),
        ({"https_proxy": "http://me:s%40cret@proxy:3128"}, Proxy("proxy", 3128, "Basic bWU6c0BjcmV0")),
        ({"https_proxy": "http://me@proxy:3128"}, Proxy("proxy", 3128, "Basic bWU6")),
    ],
)
def test_the_first_variable_names_the_proxy(environ: Mapping[str, str], proxy: Proxy | None) -> None:
    assert Proxy.from_environment(ORDERS, environ) == proxy


@pytest.mark.parametrize(
    ("host", "entries", "is_exempt"),
    [
        ("www.orders.example", "www.orders.example", True),
        ("www.orders.example", "orders.example", True),
        ("www.orders.example", ".orders.example", True),
        ("www.orders.example", "*.orders.example", True),
        ("orders.example", ".orders.example", True),
        ("WWW.orders.example.", "a,, ORDERS.example ", True),
        ("www.orders.example", "*", True),
        ("myorders.example", "orders.example", False),
        ("www.orders.example", "www", False),
        ("www.orders.example", "", False),
        ("www.orders.example", ".,*.", False),
        ("localhost", "", False),
        ("127.0.0.1", "", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.0.0.1/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "2.3,10.1.2.3/64,::/0", False),
        ("::1", "::1", True),
        ("::1", "[::1]", True),
        ("fe80::1%eth0", "fe80::/10", True),
        ("::1", "0.0.0.0/0", False),
    ],
)
def test_no_proxy_exempts_hosts(host: str, entries: str, is_exempt: bool) -> None:
    for variable in ("no_proxy", "no_grpc_proxy"):
        environ = {"https_proxy": "http://proxy:3128", variable: entries}
        assert (Proxy.from_environment(Address(host, 80), environ) is None) == is_exempt


def test_no_grpc_proxy_replaces_no_proxy() -> None:
    environ = {"https_proxy": "http://proxy:3128", "no_grpc_proxy": "", "no_proxy": "*"}
    assert Proxy.from_environment(ORDERS, environ) == PROXY


def test_a_unix_socket_has_no_proxy() -> None:
    for path in ("/run/orders.sock", "\0orders"):
        assert Proxy.from_environment(Address(path=path), {"https_proxy": "http://proxy:3128"}) is None


@pytest.mark.parametrize(
    "url",
    [
        "proxy:3128", "https://proxy:3128", "socks5://proxy:1", "http://proxy", "http://", "http://proxy:0",
        "http://me:s3cret@proxy", "http://me:s3cret@proxy:x", "me:s3cret@proxy:3128",
        "http://me:s3cret/x@proxy:1", "http://s3cret@[proxy]:3128", "http://a b:1",
        "http://\udcff:\udcff@proxy:1",
    ],
)  # fmt: skip
def test_a_bad_proxy_is_refused_by_its_variable_and_without_its_password(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"https_proxy names no HTTP proxy.*write http://host:port"
    ) as caught:
        Proxy.from_environment(ORDERS, {"https_proxy": url})
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_password_of_a_proxy_is_not_shown() -> None:
    proxy = Proxy("proxy", 3128, "Basic c2VjcmV0")
    assert "c2VjcmV0" not in f"{proxy} {proxy!r}"


@pytest.mark.parametrize("authorization", ["Basic a\r\nHost: b", "Basic \xfc"])
def test_an_authorization_that_would_add_headers_is_refused(authorization: str) -> None:
    with pytest.raises(ValueError, match="authorization of a proxy has control characters"):
        Proxy("proxy", 3128, authorization)


# Certificates

ELLIPTIC = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
RSA = ("rsa:2048",)


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, in PEM and as files."""

    certificate_path: Path
    key_path: Path

    @property
    def certificate(self) -> bytes:
        return self.certificate_path.read_bytes()

    @property
    def key(self) -> bytes:
        return self.key_path.read_bytes()


@dataclass(frozen=True)
class Authority:
    """Issues certificates by the `openssl` command."""

    folder: Path
    openssl: str
    name: str

    @property
    def root(self) -> Issued:
        return Issued(self.folder / f"{self.name}.pem", self.folder / f"{self.name}.key")

    def make_root(self) -> Authority:
        self._issue(self.root, self.name, ELLIPTIC, [])
        return self

    def issue(self, name: str, names: str, kind: tuple[str, ...]) -> Issued:
        """`names`: what the certificate is for, as OpenSSL writes a subjectAltName."""
        issued = Issued(self.folder / f"{self.name}-{name}.pem", self.folder / f"{self.name}-{name}.key")
        signed = ["-CA", str(self.root.certificate_path), "-CAkey", str(self.root.key_path)]
        self._issue(issued, name, kind, [*signed, "-addext", f"subjectAltName={names}"])
        return issued

    def _issue(self, issued: Issued, name: str, kind: tuple[str, ...], options: list[str]) -> None:
        made = [self.openssl, "req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}", *options]
        made += ["-newkey", *kind, "-keyout", str(issued.key_path), "-out", str(issued.certificate_path)]
        subprocess.run(made, check=True, capture_output=True, timeout=BOUND_S)


@dataclass(frozen=True)
class Certificates:
    """What the tests of TLS need."""

    authority: Authority
    other_authority: Authority
    server: Issued  # localhost and the loopback addresses
    elsewhere: Issued  # orders.internal
    client: Issued
    rsa: Issued

    def server_context(self, issued: Issued | None = None, alpn: tuple[str, ...] = ("h2",)) -> ssl.SSLContext:
        issued = issued or self.server
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issued.certificate_path, issued.key_path)
        if alpn:
            context.set_alpn_protocols(alpn)
        return context

    def client_context(self) -> ssl.SSLContext:
        return tls_context(roots=self.authority.root.certificate)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("makes certificates with openssl, which is not here")
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder, openssl, "authority").make_root()
    return Certificates(
        authority,
        Authority(folder, openssl, "other").make_root(),
        authority.issue("server", "DNS:localhost,IP:127.0.0.1,IP:::1", ELLIPTIC),
        authority.issue("elsewhere", "DNS:orders.internal", ELLIPTIC),
        authority.issue("client", "DNS:client", ELLIPTIC),
        authority.issue("rsa", "DNS:client", RSA),
    )


def test_a_context_checks_names_and_offers_h2(certificates: Certificates) -> None:
    context = certificates.client_context()
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert context.cert_store_stats()["x509"] == 1


def test_without_roots_the_system_is_asked(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = ssl.get_default_verify_paths().openssl_cafile_env
    monkeypatch.setenv(variable, str(certificates.authority.root.certificate_path))
    (root,) = tls_context().get_ca_certs()
    assert root["subject"] == ((("commonName", "authority"),),)


def test_comments_between_certificates_are_skipped(certificates: Certificates) -> None:
    roots = "# Zürich\n".encode() + certificates.authority.root.certificate
    roots += b"\xff\n" + certificates.other_authority.root.certificate
    assert tls_context(roots=roots).cert_store_stats()["x509"] == 2


def damaged(pem: bytes) -> bytes:
    """PEM whose base64 is whole and means nothing."""
    return re.sub(rb"\n[A-Za-z0-9+/]{64}\n", b"\n" + 64 * b"A" + b"\n", pem, count=1)


def test_roots_that_cannot_be_read_are_refused(certificates: Certificates) -> None:
    root = certificates.authority.root.certificate
    for roots, message in (
        (b"", "roots: no certificate in PEM is in it"),
        (b"garbage", "roots: no certificate in PEM is in it"),
        (certificates.client.key, "roots: no certificate in PEM is in it"),
        (damaged(root), "roots: a certificate is damaged"),
        (root + damaged(root), "roots: a certificate is damaged"),
        (root.replace(b"\nM", b"\n\xfc", 1), r"roots: a certificate is damaged \(not ASCII\)"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            tls_context(roots=roots)
        assert not isinstance(caught.value, OSError | UnicodeError)


def test_the_part_of_a_clients_certificate_that_cannot_be_read_is_named(certificates: Certificates) -> None:
    certificate, key = certificates.client.certificate, certificates.client.key
    for parts, message in (
        ((certificate, None), "key: missing beside the certificate; give both"),
        ((None, key), "certificate: missing beside the key; give both"),
        ((b"garbage", key), "certificate: no certificate in PEM"),
        ((key, certificate), "certificate: no certificate in PEM"),
        ((damaged(certificate), key), "certificate: a certificate is damaged"),
        ((certificate + damaged(certificate), key), "certificate: a certificate is damaged"),
        ((certificate, b"garbage"), "key: no private key in PEM"),
        ((certificate, damaged(key)), "key or certificate: OpenSSL refuses it"),
        ((certificate, certificates.server.key), "key: it belongs to another certificate"),
        ((certificate, certificates.rsa.key), "key: it belongs to another certificate"),
        ((certificates.rsa.certificate, key), "key: it belongs to another certificate"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            tls_context(certificate=parts[0], key=parts[1])
        assert not isinstance(caught.value, OSError | UnicodeError)


@pytest.mark.parametrize("form", ["pkcs8", "ec"])
def test_an_encrypted_key_is_refused_and_no_terminal_asked(
    certificates: Certificates, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    openssl, key = certificates.authority.openssl, str(certificates.client.key_path)
    made = {
        "pkcs8": [openssl, "pkcs8", "-topk8", "-in", key, "-passout", "pass:word"],
        "ec": [openssl, "ec", "-aes128", "-in", key, "-passout", "pass:word"],
    }[form]
    encrypted = subprocess.run(made, check=True, capture_output=True, timeout=BOUND_S).stdout
    with pytest.raises(ValueError, match="key: it is encrypted; give it decrypted"):
        tls_context(certificate=certificates.client.certificate, key=encrypted)


def test_the_file_of_a_key_is_private_and_soon_gone(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    modes: list[int] = []

    load = ssl.SSLContext.load_cert_chain

    def watched_load(context: ssl.SSLContext, path: str, **options: Any) -> None:
        modes.append(stat.S_IMODE(Path(path).stat().st_mode))
        load(context, path, **options)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched_load)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tls_context(certificate=certificates.client.certificate, key=certificates.client.key)
    with pytest.raises(ValueError, match="another certificate"):
        tls_context(certificate=certificates.client.certificate, key=certificates.server.key)
    assert modes == [0o600, 0o600]
    assert list(tmp_path.iterdir()) == []


# Servers


Handler = Callable[[socket.socket], None]


def stay_silent(sock: socket.socket) -> None:
    """Reads until the client ends."""
    with contextlib.suppress(ConnectionError):
        while sock.recv(65536):
            pass


def greet(sock: socket.socket) -> None:
    """Speaks first, as servers of HTTP/2 may."""
    sock.sendall(HELLO)
    stay_silent(sock)


def hang_up(sock: socket.socket) -> None:
    """Reads something, and ends."""
    sock.recv(65536)


def speaking(answer: bytes) -> Handler:
    """Sends bytes after it has read something."""

    def handle(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(answer)
        stay_silent(sock)

    return handle


@dataclass
class Server:
    """A server in a thread, which serves its connections one after the other."""

    listener: socket.socket
    handle: Handler
    tls: ssl.SSLContext | None = None
    served: int = 0
    is_ending: bool = False
    errors: list[BaseException] = field(default_factory=list)

    @property
    def address(self) -> Address:
        at = self.listener.getsockname()
        if isinstance(at, bytes):
            return Address(path=at.decode())
        return Address(path=at) if isinstance(at, str) else Address(*at[:2])

    def run(self) -> None:
        while True:
            sock, _ = self.listener.accept()
            sock.settimeout(BOUND_S)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.is_ending:
                sock.close()
                return
            try:
                self._serve(sock)
            except (ConnectionError, ssl.SSLError):
                pass  # the client went away, as it may
            except BaseException as error:  # noqa: BLE001 - shown by the test
                self.errors.append(error)

    def end(self) -> None:
        self.is_ending = True
        with socket.socket(self.listener.family) as last:
            last.settimeout(BOUND_S)
            last.connect(self.listener.getsockname())

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            if self.tls is None:
                self.served += 1
                self.handle(sock)
                return
            with self.tls.wrap_socket(sock, server_side=True) as secured:
                self.served += 1
                self.handle(secured)


def listening(family: int = socket.AF_INET, place: str = "127.0.0.1", backlog: int = 16) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind(place if family == socket.AF_UNIX else (place, 0))
    listener.listen(backlog)
    return listener


@contextlib.contextmanager
def serving(
    handle: Handler = greet, tls: ssl.SSLContext | None = None, listener: socket.socket | None = None
) -> Iterator[Server]:
    server = Server(listener or listening(), handle, tls)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.end()
        thread.join(BOUND_S)
        server.listener.close()
    assert not thread.is_alive()
    assert server.errors == []


class Peer(asyncio.Protocol):
    """Records what a connection brings."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.heard = asyncio.Event()
        self.lost = asyncio.Event()
        self.why_lost: Exception | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self.transport is None
        assert not self.received
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are of no class of asyncio

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.received += data
        self.heard.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.why_lost = exc
        self.lost.set()


class Untouched(asyncio.Protocol):
    """A protocol that no connection may reach."""

    def __init__(self) -> None:
        raise AssertionError("the connection is not ready")


# Event loops

Found = list[tuple[int, int, int, str, tuple[str, int]]]


class Staged:
    """Loops that know names of the tests' own, and may be late.

    A name without addresses is never resolved. `is_late`: a new connection's protocol learns of the server's
    words or of its end before anything else happens.
    """

    names: dict[str, Found | OSError | None]
    is_late = False

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if host not in self.names:
            return await super().getaddrinfo(host, port, **options)  # type: ignore[misc]  # of the loop
        found = self.names[host]
        if found is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(found, OSError):
            raise found
        return found

    async def create_connection(self, make_protocol: Any, **options: Any) -> Any:
        transport, protocol = await super().create_connection(make_protocol, **options)  # type: ignore[misc]
        while self.is_late and not (protocol.received or protocol.lost.done()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        return transport, protocol


class AsyncioLoop(Staged, asyncio.SelectorEventLoop):  # type: ignore[misc]  # it has fewer types
    """asyncio's loop."""


class UvLoop(Staged, uvloop.Loop):  # type: ignore[misc]  # its own types disagree with asyncio's
    """uvloop's loop."""


def open_sockets() -> set[str]:
    """The inodes of all sockets of this process."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            found.add(str(link.readlink()))
    return {target for target in found if target.startswith("socket:")}


@dataclass
class Bench:
    """Runs coroutines on one loop, each within a bound, and sees that none leaves a socket open."""

    runner: asyncio.Runner

    @property
    def loop(self) -> Staged:
        loop = self.runner.get_loop()
        assert isinstance(loop, Staged)
        return loop

    @property
    def names(self) -> dict[str, Found | OSError | None]:
        return self.loop.names

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(self._bounded(coroutine))

    async def _bounded(self, coroutine: Coroutine[Any, Any, T]) -> T:
        before = open_sockets()
        async with asyncio.timeout(BOUND_S):
            try:
                return await coroutine
            finally:
                # Servers close their sockets when they see the client's end. No event tells of that.
                while open_sockets() - before:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

    def fail(self, address: Address, **options: Any) -> str:
        """Why no connection can be opened; no protocol may see it."""
        with pytest.raises(ConnectError) as caught:
            self.run(open_connection(address, Untouched, **options))
        text = str(caught.value)
        assert text.startswith(str(address))
        assert text.isprintable()
        return text

    def hear(self, address: Address, **options: Any) -> Peer:
        """A connection after the server's first words, closed."""

        async def hear() -> Peer:
            peer = await open_connection(address, Peer, **options)
            assert peer.transport is not None
            try:
                while not peer.received.endswith(HELLO):
                    peer.heard.clear()
                    await peer.heard.wait()
                assert peer.received == HELLO
            finally:
                peer.transport.abort()
            await peer.lost.wait()
            return peer

        return self.run(hear())


@pytest.fixture(params=[AsyncioLoop, UvLoop])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        bench = Bench(runner)
        bench.loop.names = {}
        yield bench
    gc.collect(1)  # warns of what was not closed; the older generation takes long


# Sockets


@pytest.mark.parametrize(("family", "place"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_server_at_an_ip_address_is_reached(bench: Bench, family: int, place: str) -> None:
    with serving(listener=listening(family, place)) as server:
        bench.hear(server.address)


def test_what_is_written_leaves_at_once(bench: Bench) -> None:
    async def delays(address: Address) -> int:
        peer = await open_connection(address, Peer)
        assert peer.transport is not None
        no_delay: int = peer.transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY
        )
        peer.transport.abort()
        return no_delay

    with serving() as server:
        assert bench.run(delays(server.address)) != 0


def user_timeout_ms(sock: socket.socket) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
@pytest.mark.parametrize(("timeout_s", "timeout_ms"), [(None, 0), (0.0, 1), (1.5, 1_500), (1e9, 2**31 - 1)])
@pytest.mark.parametrize("way", ["plain", "tls", "proxy", "proxy and tls"])
def test_the_system_ends_a_connection_whose_peer_acknowledges_nothing(
    bench: Bench, certificates: Certificates, way: str, timeout_s: float | None, timeout_ms: int
) -> None:
    options: dict[str, Any] = {}
    if "tls" in way:
        options = {"tls": certificates.client_context(), "server_name": "orders.internal"}

    async def option(address: Address) -> int:
        peer = await open_connection(address, Peer, tcp_user_timeout_s=timeout_s, **options)
        assert peer.transport is not None
        found = user_timeout_ms(peer.transport.get_extra_info("socket"))
        peer.transport.abort()
        return found

    tls = certificates.server_context(certificates.elsewhere) if "tls" in way else None
    with serving(tls=tls) as server:
        if "proxy" not in way:
            assert bench.run(option(server.address)) == timeout_ms
            return
        with serving(Tunnel(server.address)) as proxy:
            options["proxy"] = proxy_at(proxy, "quietly")
            assert bench.run(option(Address("orders.internal", 50051))) == timeout_ms


def test_a_unix_socket_has_no_tcp_user_timeout(bench: Bench, tmp_path: Path) -> None:
    with serving(listener=listening(socket.AF_UNIX, str(tmp_path / "orders"))) as server:
        bench.hear(server.address, tcp_user_timeout_s=1.0)


def test_a_server_at_a_unix_socket_is_reached(bench: Bench, tmp_path: Path) -> None:
    for path in (str(tmp_path / "my orders"), f"\0switchyard-{uuid.uuid4()}"):
        with serving(listener=listening(socket.AF_UNIX, path)) as server:
            assert server.address.path == path
            bench.hear(server.address)


def test_a_name_is_resolved(bench: Bench) -> None:
    with serving() as server:
        bench.hear(Address("localhost", server.address.port))


def test_a_refused_port_is_reported(bench: Bench) -> None:
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        address = Address(*bound.getsockname())
        why = bench.fail(address)
    words = "connecting to the server failed: Connection refused; check that it runs and listens there"
    assert why == f"{address}: {words}"


def test_a_missing_unix_socket_is_reported(bench: Bench, tmp_path: Path) -> None:
    why = bench.fail(Address(path=str(tmp_path / "none")))
    assert "No such file or directory; check the path; the server makes the socket when it starts" in why


def test_an_unknown_name_is_reported(bench: Bench) -> None:
    bench.names["nobody"] = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    words = "resolving the name 'nobody' failed: Name or service not known; check the name and the DNS"
    assert bench.fail(Address("nobody", 80)) == f"nobody:80: {words}"


def test_a_client_that_would_connect_to_itself_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Same(socket.socket):
        """A socket that the system gives the port to which it connects."""

        def connect(self, address: Any) -> None:
            self.bind(address)
            super().connect(address)

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = Address(*bound.getsockname())
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", Same)
        assert "Connection refused" in bench.fail(address)


@contextlib.contextmanager
def full_listener() -> Iterator[socket.socket]:
    """A listener whose queue is full, so that connecting to it gets no answer."""
    with listening(backlog=0) as listener, socket.create_connection(listener.getsockname(), BOUND_S):
        yield listener


def found(*listeners: socket.socket) -> Found:
    return [(one.family, socket.SOCK_STREAM, 0, "", one.getsockname()[:2]) for one in listeners]


def test_an_address_that_does_not_answer_does_not_keep_the_next_from_being_tried(bench: Bench) -> None:
    with full_listener() as full, serving() as server:
        bench.names["orders"] = found(full, server.listener)
        bench.hear(Address("orders", 80))


def test_an_address_that_refuses_does_not_delay_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "ATTEMPT_DELAY_S", 10 * BOUND_S)
    with socket.socket() as closed, serving() as server:
        closed.bind(("127.0.0.1", 0))
        bench.names["orders"] = found(closed, server.listener)
        bench.hear(Address("orders", 80))


def test_families_of_addresses_take_turns() -> None:
    async def places(found: Found) -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AsyncioLoop)
        loop.names = {"orders": found}
        return [str(address[0]) for _, address in await connect._resolved("orders", 1)]

    v4 = [(socket.AF_INET, 0, 0, "", (f"10.0.0.{n}", 1)) for n in (1, 2)]
    v6 = [(socket.AF_INET6, 0, 0, "", (f"::{n}", 1)) for n in (1, 2, 3)]
    with asyncio.Runner(loop_factory=AsyncioLoop) as runner:
        assert runner.run(places([*v6, *v4])) == ["::1", "10.0.0.1", "::2", "10.0.0.2", "::3"]
        assert runner.run(places([*v4, *v6])) == ["10.0.0.1", "::1", "10.0.0.2", "::2", "::3"]


def test_different_errors_of_several_addresses_are_all_reported(bench: Bench) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        broadcast = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("255.255.255.255", 1))
        bench.names["orders"] = [*found(closed), broadcast]
        why = bench.fail(Address("orders", 80))
    assert "127.0.0.1: Connection refused" in why
    assert "255.255.255.255: " in why


def test_a_full_unix_socket_is_waited_for(bench: Bench) -> None:
    path = f"\0switchyard-{uuid.uuid4()}"
    with listening(socket.AF_UNIX, path, backlog=0) as listener, socket.socket(socket.AF_UNIX) as first:
        first.connect(path)

        async def connects() -> None:
            opening = asyncio.create_task(open_connection(Address(path=path), Peer))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not opening.done()
            listener.accept()[0].close()
            peer = await opening
            assert peer.transport is not None
            listener.accept()[0].close()
            await peer.lost.wait()

        bench.run(connects())


def test_a_connection_that_its_server_ends_at_once_leaves_nothing(bench: Bench) -> None:
    async def opens(address: Address) -> None:
        with contextlib.suppress(ConnectError):  # or the protocol learns it
            peer = await open_connection(address, Peer)
            await peer.lost.wait()

    with serving(lambda sock: None) as server:
        for _ in range(20):
            bench.run(opens(server.address))


def test_what_a_server_does_before_its_client_is_ready_is_not_lost(
    bench: Bench, certificates: Certificates
) -> None:
    bench.loop.is_late = True
    with serving(greet) as server:
        bench.hear(server.address)
        assert NO_TLS in bench.fail(server.address, tls=certificates.client_context())
    with serving(lambda sock: None) as server:
        assert "the server closed the connection at once; check" in bench.fail(server.address)


class Broken(Peer):
    """Fails as a protocol may."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        raise LookupError("mine")


def broken() -> Peer:
    raise LookupError("mine")


@pytest.mark.parametrize("make_protocol", [broken, Broken])
@pytest.mark.parametrize("is_secure", [False, True])
def test_an_error_of_the_protocol_is_raised_and_closes_the_connection(
    bench: Bench, certificates: Certificates, make_protocol: Callable[[], Peer], is_secure: bool
) -> None:
    with serving(tls=certificates.server_context() if is_secure else None) as server:
        tls = certificates.client_context() if is_secure else None
        with pytest.raises(LookupError, match="mine"):
            bench.run(open_connection(server.address, make_protocol, tls=tls))


# TLS


def test_a_server_of_tls_is_reached_by_all_its_names(
    bench: Bench, certificates: Certificates, tmp_path: Path
) -> None:
    tls = certificates.client_context()
    for listener in (listening(), listening(socket.AF_INET6, "::1")):
        with serving(tls=certificates.server_context(), listener=listener) as server:
            bench.hear(server.address, tls=tls)
    with serving(tls=certificates.server_context()) as server:
        bench.names["localhost."] = found(server.listener)
        bench.hear(Address("localhost.", 80), tls=tls)
    with serving(
        tls=certificates.server_context(), listener=listening(socket.AF_UNIX, str(tmp_path / "orders"))
    ) as server:
        bench.hear(server.address, tls=tls)


def test_the_server_learns_the_name_and_h2(bench: Bench, certificates: Certificates) -> None:
    seen: list[tuple[str | None, str | None]] = []
    context = certificates.server_context(certificates.elsewhere, ("http/1.1", "h2"))
    names: list[str | None] = []
    context.sni_callback = lambda sock, name, context: names.append(name)

    def handle(sock: socket.socket) -> None:
        assert isinstance(sock, ssl.SSLSocket)
        seen.append((names[-1], sock.selected_alpn_protocol()))
        greet(sock)

    with serving(handle, context) as server:
        tls = certificates.client_context()
        bench.hear(server.address, tls=tls, server_name="orders.internal")
        bench.hear(server.address, tls=tls, server_name="orders.internal.")
        bench.names["orders.internal"] = found(server.listener)
        bench.hear(Address("orders.internal", 80), tls=tls)
    assert seen == 3 * [("orders.internal", "h2")]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_servers_first_words_in_tls_reach_the_protocol(
    bench: Bench, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    context = certificates.server_context()
    context.maximum_version = version
    with serving(tls=context) as server:
        for _ in range(10):
            bench.hear(server.address, tls=certificates.client_context())


def test_a_certificate_may_be_a_root_itself(bench: Bench, certificates: Certificates) -> None:
    with serving(tls=certificates.server_context()) as server:
        bench.hear(server.address, tls=tls_context(roots=certificates.server.certificate))


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_certificate_for_another_name_is_refused(
    bench: Bench, certificates: Certificates, name: str
) -> None:
    with serving(tls=certificates.server_context(certificates.elsewhere)) as server:
        address = Address(name, server.address.port)
        why = bench.fail(address, tls=certificates.client_context())
        assert f"certificate is not valid for {name!r}; connect by its name, or set server_name" in why
    assert server.served == 0


def test_a_certificate_of_an_unknown_authority_is_refused(bench: Bench, certificates: Certificates) -> None:
    tls = tls_context(roots=certificates.other_authority.root.certificate)
    for issued in (certificates.server, certificates.authority.root):
        with serving(tls=certificates.server_context(issued)) as server:
            why = bench.fail(server.address, tls=tls, server_name="localhost")
        assert "certificate is of an unknown authority (" in why
        assert "add it to the trusted ones" in why


@pytest.mark.parametrize(
    "handle",
    [greet, speaking(SETTINGS), speaking(b"HTTP/1.1 400 Bad\r\n\r\n"), speaking(b"\xff" * 99), hang_up],
    ids=["speaks first", "settings", "http", "garbage", "hangs up"],
)  # fmt: skip
def test_a_server_without_tls_is_reported(bench: Bench, certificates: Certificates, handle: Handler) -> None:
    with serving(handle) as server:
        why = bench.fail(server.address, tls=certificates.client_context())
    if handle is hang_up:
        assert (
            "the server closed the connection in the TLS handshake; check that the server speaks TLS" in why
        )
    else:
        assert "the server does not speak TLS on this port; connect without TLS" in why


@pytest.mark.parametrize("alpn", [("http/1.1",), ()])
def test_a_server_without_http2_is_refused(
    bench: Bench, certificates: Certificates, alpn: tuple[str, ...]
) -> None:
    with serving(tls=certificates.server_context(alpn=alpn)) as server:
        why = bench.fail(server.address, tls=certificates.client_context())
    assert "the server did not agree on 'h2' by ALPN; check that it serves gRPC or HTTP/2" in why


def test_an_alert_of_the_server_is_reported(bench: Bench, certificates: Certificates) -> None:
    context = certificates.server_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    tls = certificates.client_context()
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    with serving(tls=context) as server:
        assert "the server refused TLS (tlsv1 alert protocol version)" in bench.fail(server.address, tls=tls)


@pytest.mark.parametrize("kind", ["client", "rsa"])
def test_a_server_that_asks_for_a_certificate_gets_the_clients(
    bench: Bench, certificates: Certificates, kind: str
) -> None:
    issued: Issued = getattr(certificates, kind)
    context = certificates.server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.authority.root.certificate_path)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # later versions refuse after the handshake
    seen: list[object] = []

    def handle(sock: socket.socket) -> None:
        assert isinstance(sock, ssl.SSLSocket)
        seen.append((sock.getpeercert() or {}).get("subject"))
        greet(sock)

    with serving(handle, context) as server:
        roots = certificates.authority.root.certificate
        mutual = tls_context(roots=roots, certificate=issued.certificate, key=issued.key)
        bench.hear(server.address, tls=mutual)
        why = bench.fail(server.address, tls=tls_context(roots=roots))
    assert seen == [((("commonName", kind),),)]
    assert "the server refused TLS (" in why
    assert "alert" in why


def test_a_refusal_after_the_handshake_reaches_the_protocol_or_is_raised(
    bench: Bench, certificates: Certificates
) -> None:
    context = certificates.server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.authority.root.certificate_path)
    tls = certificates.client_context()
    tls.minimum_version = ssl.TLSVersion.TLSv1_3

    async def opens(address: Address) -> str:
        try:
            peer = await open_connection(address, Peer, tls=tls)
        except ConnectError as error:
            return str(error)
        await peer.lost.wait()
        return str(peer.why_lost)

    with serving(tls=context) as server:
        for _ in range(10):
            assert "alert certificate required" in bench.run(opens(server.address)).lower().replace("_", " ")
    assert server.served == 0


@pytest.mark.parametrize("name", ["a b", "localhost:80", "me@localhost", 64 * "a"])
def test_a_server_name_that_is_no_host_is_refused(
    bench: Bench, certificates: Certificates, name: str
) -> None:
    opening = open_connection(
        Address("localhost", 1), Untouched, tls=certificates.client_context(), server_name=name
    )
    with pytest.raises(ValueError, match="server_name") as caught:
        bench.run(opening)
    assert not isinstance(caught.value, UnicodeError)


# Proxies


@dataclass
class Tunnel:
    """A proxy that leads each tunnel to one server, whatever its client asks for."""

    target: Address
    requests: list[bytes] = field(default_factory=list)

    def __call__(self, sock: socket.socket) -> None:
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            received = sock.recv(65536)
            if not received:
                return
            request += received
        self.requests.append(request)
        with socket.create_connection((self.target.host, self.target.port), BOUND_S) as server:
            first = b"" if b"quietly" in request else server.recv(5)  # so that it comes with the answer
            sock.sendall(FOUND + first)
            back = threading.Thread(target=self._copy, args=(server, sock), daemon=True)
            back.start()
            self._copy(sock, server)
            back.join(BOUND_S)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


def proxy_at(server: Server, authorization: str = "") -> Proxy:
    return Proxy(server.address.host, server.address.port, authorization)


def test_a_tunnel_keeps_all_the_servers_words(bench: Bench) -> None:
    with serving() as server, serving(Tunnel(server.address)) as proxy:
        bench.hear(Address("orders.internal", 50051), proxy=proxy_at(proxy, "Basic bWU6"))
        bench.hear(Address("fe80::1%eth0", 50051), proxy=proxy_at(proxy))
        assert isinstance(proxy.handle, Tunnel)
        assert proxy.handle.requests == [
            b"CONNECT orders.internal:50051 HTTP/1.1\r\nHost: orders.internal:50051\r\n"
            b"Proxy-Authorization: Basic bWU6\r\n\r\n",
            b"CONNECT [fe80::1]:50051 HTTP/1.1\r\nHost: [fe80::1]:50051\r\n\r\n",
        ]


def test_tls_inside_a_tunnel_checks_the_servers_name(bench: Bench, certificates: Certificates) -> None:
    tls = certificates.client_context()
    with (
        serving(tls=certificates.server_context(certificates.elsewhere)) as server,
        serving(Tunnel(server.address)) as proxy,
    ):
        way = proxy_at(proxy, "quietly")
        bench.hear(Address("orders.internal", 50051), proxy=way, tls=tls)
        bench.hear(Address("quietly.example", 50051), proxy=way, tls=tls, server_name="orders.internal")
        why = bench.fail(Address("quietly.example", 50051), proxy=way, tls=tls)
        assert f"by the proxy {way}: the server's certificate is not valid for 'quietly.example'" in why


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nA: b\r\n\r\n",
         "the proxy refuses with 'HTTP/1.1 407 Proxy Authentication Required'; give its user and password"),
        (b"HTTP/1.0 403 No\x1b[31m\xff\r\n\r\n",
         "the proxy refuses with 'HTTP/1.0 403 No [31m\xff'; check which servers it allows"),
        (b"HTTP/1.1 502 " + 9_000 * b"a\t" + b"\r\n", "exceeds 16384 bytes"),
        (b"HTTP/1.1 502 " + 4_000 * b"a\t" + b"\r\n\r\n", "the proxy refuses with 'HTTP/1.1 502 a a a"),
        (b"HTTP/1.1 200 OK\r\n" + 2_000 * b"A: bcdef\r\n", "exceeds 16384 bytes; check that an HTTP proxy"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "the proxy refuses with 'HTTP/1.1 2000 OK'"),
        (b"HTTP/1.x\r\n\r\n", "the proxy refuses with 'HTTP/1.x'"),
        (b"HTTP/2 200\r\n\r\n", "the proxy does not answer in HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the proxy does not answer in HTTP; check that an HTTP proxy listens"),
        (SETTINGS, "the proxy does not answer in HTTP"),
    ],
)  # fmt: skip
def test_a_proxy_that_does_not_open_a_tunnel_is_reported(bench: Bench, answer: bytes, message: str) -> None:
    with serving(speaking(answer)) as server:
        why = bench.fail(Address("orders", 80), proxy=proxy_at(server, "Basic s3cret"))
    assert message in why
    assert "s3cret" not in why
    assert len(why) < 400


def test_a_proxy_that_ends_its_answer_early_is_reported(bench: Bench) -> None:
    def handle(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 200 OK\r\n")

    for ends, said in ((hang_up, "''"), (handle, "'HTTP/1.1 200 OK'")):
        with serving(ends) as server:
            why = bench.fail(Address("orders", 80), proxy=proxy_at(server))
        assert f"the proxy closed the connection after {said}; check that an HTTP proxy listens there" in why


def test_a_proxy_that_is_not_there_is_reported(bench: Bench) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        proxy = Proxy(*bound.getsockname())
        why = bench.fail(Address("orders", 80), proxy=proxy)
    assert why.startswith(
        f"orders:80 by the proxy {proxy}: connecting to the proxy failed: Connection refused"
    )
    bench.names["proxy"] = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert "resolving the name 'proxy' failed" in bench.fail(Address("orders", 80), proxy=PROXY)


def test_a_proxy_to_a_unix_socket_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match=r"proxy http://proxy:3128 leads to no Unix socket; give no proxy"):
        bench.run(open_connection(Address(path="/orders"), Untouched, proxy=PROXY))


# Time limits and cancellation


@dataclass
class Hanging:
    """An opening that hangs in one step."""

    address: Address
    options: dict[str, Any]
    step: str


@pytest.fixture(params=["name", "connect", "unix", "proxy", "tls", "proxy and tls"])
def hanging(
    request: pytest.FixtureRequest, bench: Bench, certificates: Certificates, tmp_path: Path
) -> Iterator[Hanging]:
    tls = certificates.client_context()
    with contextlib.ExitStack() as stack:
        match request.param:
            case "name":
                bench.names["orders"] = None
                yield Hanging(Address("orders", 80), {}, "resolving the name 'orders'")
            case "connect":
                at = stack.enter_context(full_listener()).getsockname()
                yield Hanging(Address(*at), {}, "connecting to the server")
            case "unix":
                path = str(tmp_path / "orders")
                stack.enter_context(listening(socket.AF_UNIX, path, backlog=0))
                stack.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
                yield Hanging(Address(path=path), {}, "connecting to the socket")
            case "proxy":
                at = stack.enter_context(listening()).getsockname()
                yield Hanging(Address("orders", 80), {"proxy": Proxy(*at)}, "asking the proxy")
            case "tls":
                at = stack.enter_context(listening()).getsockname()
                yield Hanging(Address(*at), {"tls": tls}, "the TLS handshake")
            case _:
                proxy = stack.enter_context(serving(speaking(FOUND)))
                options = {"tls": tls, "proxy": proxy_at(proxy)}
                yield Hanging(Address("orders", 80), options, "the TLS handshake")


def test_each_step_ends_at_the_time_limit(bench: Bench, hanging: Hanging) -> None:
    why = bench.fail(hanging.address, timeout_s=LIMIT_S, **hanging.options)
    assert f": {hanging.step} got no answer within {LIMIT_S:g} s; check " in why


def test_a_cancelled_opening_leaves_no_socket(bench: Bench, hanging: Hanging) -> None:
    async def cancels() -> None:
        opening = asyncio.create_task(open_connection(hanging.address, Untouched, **hanging.options))
        done, _ = await asyncio.wait([opening], timeout=SHORT_S)
        assert not done, "it should hang"
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    bench.run(cancels())


def test_an_opening_may_be_cancelled_at_any_turn_of_the_loop(
    bench: Bench, certificates: Certificates
) -> None:
    async def cancels(opening: Coroutine[Any, Any, Peer], turns: int) -> bool:
        task = asyncio.create_task(opening)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            peer = await task
        except asyncio.CancelledError:
            return False
        assert peer.transport is not None
        peer.transport.abort()
        return True

    tls = certificates.client_context()
    with (
        serving(tls=certificates.server_context(certificates.elsewhere)) as server,
        serving(Tunnel(server.address)) as proxy,
    ):
        ends: list[bool] = []
        while ends.count(True) < 5:
            orders = Address("orders.internal", 50051)
            opening = open_connection(orders, Peer, tls=tls, proxy=proxy_at(proxy, "quietly"))
            ends.append(bench.run(cancels(opening, turns=len(ends))))
    assert not ends[0]


def test_the_losers_of_a_race_are_closed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "ATTEMPT_DELAY_S", 0.0)  # all at once
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving()) for _ in range(4)]
        bench.names["orders"] = found(*(server.listener for server in servers))
        for _ in range(20):
            bench.hear(Address("orders", 80))
