"""Certificates for servers on 127.0.0.1 and for their clients, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 60.0
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
CONFIG = """\
[req]
distinguished_name = subject
[subject]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
[holder]
basicConstraints = critical, CA:FALSE
subjectAltName = IP:127.0.0.1, DNS:localhost
"""


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: an authority, and a server and a client that it vouches for."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path

    @property
    def server_options(self) -> tuple[str, ...]:
        """The options of a peer with TLS."""
        return "--tls-cert", str(self.server), "--tls-key", str(self.server_key)

    @property
    def mutual_options(self) -> tuple[str, ...]:
        """The options of a peer whose clients must show a certificate."""
        return *self.server_options, "--client-ca", str(self.authority)

    def install(self, folder: Path) -> tuple[str, str, str]:
        """Copies what a client needs into the folder, over another's. Returns the paths of the authority, the
        certificate and its key."""

        def put(name: str, source: Path) -> str:
            fresh = folder / f"{name}.new"
            shutil.copy(source, fresh)
            return str(fresh.replace(folder / f"{name}.pem"))

        return put("ca", self.authority), put("cert", self.client), put("key", self.client_key)


def make(folder: Path) -> Certificates:
    """Writes new files into the folder, which need not exist. Raises RuntimeError: there is no openssl."""
    if (openssl := shutil.which("openssl")) is None:
        raise RuntimeError("certificates are made with openssl, which is not on PATH; install openssl")
    folder.mkdir(exist_ok=True)
    config = folder / "openssl.cnf"
    config.write_text(CONFIG)

    def write(name: str, extensions: str, *signed_by: str) -> tuple[Path, Path]:
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        subprocess.run(
            [
                *(openssl, "req", "-x509", *KEY, "-config", str(config), "-extensions", extensions),
                *("-subj", f"/CN={name}", "-days", "30", "-keyout", str(key), "-out", str(certificate)),
                *signed_by,
            ],
            check=True,
            capture_output=True,
            timeout=TIMEOUT_S,
        )
        return certificate, key

    authority, authority_key = write("authority", "authority")
    signed_by = ("-CA", str(authority), "-CAkey", str(authority_key))
    server, server_key = write("server", "holder", *signed_by)
    client, client_key = write("client", "holder", *signed_by)
    return Certificates(authority, server, server_key, client, client_key)
