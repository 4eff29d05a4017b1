"""TLS of a gRPC client: its context, and what a failed handshake says to people."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, NoReturn

from app.grpc_client.address import plain_text

ALPN = "h2"
CERTIFICATE_REMEDY = "if the server wants a certificate, give a valid one of an authority that it trusts"
TLS_REMEDY = f"check that the server speaks TLS on this port; {CERTIFICATE_REMEDY}"
NO_TLS = "the server does not speak TLS on this port; connect without TLS, or to another port"

_CERTIFICATES = re.compile(rb"-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----.+?-----END \1-----", re.DOTALL)
_KEYS = re.compile(rb"-----BEGIN ((?:[A-Z]+ )?PRIVATE KEY)-----.+?-----END \1-----", re.DOTALL)

# Of OpenSSL: `verify_code`s, and reasons of errors.
_OTHER_NAME = {62, 63, 64}
_UNKNOWN_AUTHORITY = {2, 18, 19, 20, 21}
_NO_TLS = {
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
    "UNKNOWN_PROTOCOL",
    "WRONG_VERSION_NUMBER",
}
_OTHER_KEY = {"KEY_TYPE_MISMATCH", "KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}


def tls_context(
    *, roots: bytes | None = None, certificate: bytes | None = None, key: bytes | None = None
) -> ssl.SSLContext:
    """A TLS context of a gRPC client: at least TLS 1.2, ALPN "h2", certificates and names are checked.

    Args:
        roots: Certificates in PEM of the authorities to trust; None: those of the system.
        certificate: The client's own in PEM, followed by those of intermediate authorities.
        key: Of this certificate, in PEM, not encrypted.

    Raises:
        ValueError: With the part that is wrong and the remedy, and nothing of the key.
    """
    if (certificate is None) != (key is None):
        missing, given = ("certificate", "key") if certificate is None else ("key", "certificate")
        raise ValueError(f"{missing}: missing beside the {given}; give both or none")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    context.set_alpn_protocols([ALPN])
    # As in gRPC, the certificate of a server or of an intermediate authority may be a root itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if roots is None:
        context.load_default_certs()
    else:
        _trust(context, "roots", roots)
    if certificate is not None and key is not None:
        chain = _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "certificate", certificate)
        _load_key(context, chain, key)
    return context


def handshake_words(error: ssl.SSLError, name: str) -> str:
    """Why TLS failed, and the remedy. `name`: the one that the certificate must be valid for."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = plain_text(error.verify_message)
        if error.verify_code in _OTHER_NAME:
            return (
                f"the server's certificate is not valid for {name!r}; connect by its name, or set server_name"
            )
        if error.verify_code in _UNKNOWN_AUTHORITY:
            return f"the server's certificate is of an unknown authority ({why}); add it to the trusted ones"
        return f"the server's certificate is refused ({why}); renew it"
    if error.reason in _NO_TLS:
        return NO_TLS
    if "ALERT" in (error.reason or ""):
        return (
            f"the server refused TLS ({_openssl_words(error)}); {CERTIFICATE_REMEDY}; check versions and "
            "ciphers, too"
        )
    return f"TLS failed ({_openssl_words(error)}); {TLS_REMEDY}"


def _openssl_words(error: ssl.SSLError) -> str:
    return plain_text((error.reason or "no reason given").replace("_", " ").lower())


def _trust(context: ssl.SSLContext, part: str, pem: bytes) -> list[bytes]:
    """Lets the context trust these certificates, and returns them; `part` names them in an error."""
    certificates = [found[0] for found in _CERTIFICATES.finditer(pem)]
    if not certificates:
        raise ValueError(f"{part}: no certificate in PEM is in it; give BEGIN CERTIFICATE to END CERTIFICATE")
    try:
        context.load_verify_locations(cadata=b"\n".join(certificates).decode("ascii"))
    except UnicodeDecodeError:
        raise ValueError(f"{part}: a certificate is damaged (not ASCII); export it again") from None
    except ssl.SSLError as error:
        raise ValueError(
            f"{part}: a certificate is damaged ({_openssl_words(error)}); export it again"
        ) from error
    return certificates


def _load_key(context: ssl.SSLContext, chain: Sequence[bytes], pem: bytes) -> None:
    """Gives the context a valid chain of certificates and the key of the first."""

    def refuse() -> NoReturn:  # otherwise OpenSSL asks at the terminal
        raise ValueError("key: it is encrypted; give it decrypted")

    found = _KEYS.search(pem)
    if found is None:
        raise ValueError("key: no private key in PEM is in it; give BEGIN PRIVATE KEY to END PRIVATE KEY")
    # OpenSSL reads both from files only. Nobody else may read this one, and it is gone at the end.
    with _private_file() as (file, path):
        file.write(b"\n".join([*chain, found[0], b""]))
        file.flush()
        try:
            context.load_cert_chain(path, password=refuse)
        except ssl.SSLError as error:
            if error.reason in _OTHER_KEY:
                raise ValueError(
                    "key: it belongs to another certificate; give the certificate's own"
                ) from error
            why = _openssl_words(error)
            raise ValueError(f"key or certificate: OpenSSL refuses it ({why}); export it again") from error


@contextlib.contextmanager
def _private_file() -> Iterator[tuple[IO[bytes], str]]:
    """A file and its path: in memory where there are such files, because a disk may keep what was deleted."""
    try:
        in_memory = os.memfd_create("grpc")
    except (AttributeError, OSError):  # the system has none, or forbids them
        with tempfile.NamedTemporaryFile(prefix="grpc-", suffix=".pem") as named:
            yield named, named.name
    else:
        with os.fdopen(in_memory, "w+b") as file:
            os.fchmod(in_memory, 0o600)
            yield file, f"/proc/self/fd/{in_memory}"
