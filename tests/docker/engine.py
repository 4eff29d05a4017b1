"""A Docker engine, the images that it builds, and a base image where none can be pulled.

Rules:
- A missing tool skips the tests and names the remedy; a tool that fails makes the tests fail.
- Nothing is installed, and no registry is named. Images are built from `docker/` as a user builds them.
- The build context has the files that .dockerignore admits, the host's certificates and the yard's jars.
- Docker's layer cache avoids repeated builds.
"""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.dev.yard.jars import JarSet

ROOT = Path(__file__).parents[2]
PULLED_BASE, OWN_BASE = "debian:bookworm-slim", "switchyard-test-base:bookworm"
PULLED_GO, OWN_GO = "golang:1.26-bookworm", "switchyard-test-go:bookworm"
INSTALL = "as root: apt-get install docker.io docker-compose debootstrap"
START_S, STOP_S, PULL_S, BUILD_S = 40.0, 60.0, 120.0, 900.0
# The official slim image leaves these out, too.
LEFT_OUT = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale",
            "usr/share/info", "dev", "proc", "sys")  # fmt: skip
SLIM = {
    "etc/apt/apt.conf.d/docker-clean": (
        'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };\n'
        'Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";\n'
    ),
    "etc/dpkg/dpkg.cfg.d/slim": "".join(
        f"path-exclude /usr/share/{name}/*\n" for name in ("doc", "man", "locale", "info")
    ),
}


def run(*command: str, timeout_s: float = 120.0, env: Mapping[str, str] | None = None) -> str:
    """A command's output. A failure fails the test with that output."""
    done = subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, (
        f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout


def succeeds(*command: str, timeout_s: float = 20.0) -> bool:
    """Whether a command ends with 0 in time."""
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout_s, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def answers() -> bool:
    """Whether a Docker engine answers."""
    return succeeds("docker", "version", "--format", "{{.Server.Version}}")


def _is_present(image: str) -> bool:
    return succeeds("docker", "image", "inspect", image)


def _is_available(image: str) -> bool:
    return _is_present(image) or succeeds("docker", "pull", "--quiet", image, timeout_s=PULL_S)


class Engine:
    """The running engine, or one that this class starts and `close` ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context: Path | None = None
        self._base = ""
        self._dockerd: subprocess.Popen[bytes] | None = None
        if shutil.which("docker") is None:
            pytest.skip(f"docker is not on PATH; {INSTALL}")
        if not answers():
            self._start()

    def _start(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("no Docker engine answers, and only root can start one; start it, or set DOCKER_HOST")
        if shutil.which("dockerd") is None:
            pytest.skip(f"no Docker engine answers, and dockerd is not on PATH; {INSTALL}")
        log = self._folder / "dockerd.log"
        with log.open("wb") as output:
            # dockerd ends with this process, also when this process is killed.
            self._dockerd = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "dockerd"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        deadline_s = time.monotonic() + START_S
        while not answers():
            if self._dockerd.poll() is not None or time.monotonic() > deadline_s:
                self.close()
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-3:])
                pytest.skip(f"dockerd cannot run here (it needs cgroups, overlayfs and iptables): {tail}")
            time.sleep(0.2)

    def close(self) -> None:
        """Ends the engine and its containers, if this class started it."""
        dockerd, self._dockerd = self._dockerd, None
        if dockerd is not None and dockerd.poll() is None:
            dockerd.send_signal(signal.SIGTERM)
            try:
                dockerd.wait(STOP_S)
            except subprocess.TimeoutExpired:
                dockerd.kill()
                dockerd.wait(STOP_S)

    # -- images ----------------------------------------------------------------------------------

    def build(self, name: str, **arguments: str) -> str:
        """Builds docker/<name>.Dockerfile with BASE and these arguments; the image's tag."""
        tag = f"switchyard-{name}:test"
        file = self.context / "docker" / f"{name}.Dockerfile"
        build_arguments = [
            f"{argument}={value}" for argument, value in {"BASE": self.base, **arguments}.items()
        ]
        run(
            "docker", "build", "--quiet", "--network", "host",
            *(part for argument in build_arguments for part in ("--build-arg", argument)),
            "--file", str(file), "--tag", tag, str(self.context), timeout_s=BUILD_S,
        )  # fmt: skip
        return tag

    @property
    def context(self) -> Path:
        """The build context, with this machine's files in docker/local."""
        if self._context is None:
            self._context = self._folder / "context"
            lines = (ROOT / ".dockerignore").read_text().splitlines()
            for name in (line[1:] for line in lines if line.startswith("!")):
                source, target = ROOT / name, self._context / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if source.is_dir():
                    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
                elif source.exists():
                    shutil.copy(source, target)
            for file in (ROOT / "docker").glob("*.Dockerfile"):
                shutil.copy(file, self._context / "docker")
            shutil.copy(ROOT / ".dockerignore", self._context)
            self._add_local(self._context / "docker" / "local")
        return self._context

    @staticmethod
    def _add_local(local: Path) -> None:
        (local / "jars").mkdir(parents=True, exist_ok=True)
        certificates = ssl.get_default_verify_paths().cafile
        if certificates and not (local / "ca.crt").exists():
            shutil.copy(certificates, local / "ca.crt")
        cached = JarSet.load()
        for jar in cached.jars:
            if jar.is_good(cached.folder):
                shutil.copy(cached.folder / jar.file_name, local / "jars")

    @property
    def base(self) -> str:
        """Debian's slim image if it can be pulled, else one that debootstrap makes."""
        if not self._base:
            if _is_available(PULLED_BASE):
                self._base = PULLED_BASE
            else:
                if not _is_present(OWN_BASE):
                    self._make_base()
                self._base = OWN_BASE
        return self._base

    def go_base(self) -> str:
        """Go's image if it can be pulled, else the base with this machine's Go."""
        if _is_available(PULLED_GO):
            return PULLED_GO
        if shutil.which("go") is None:
            pytest.skip(f"{PULLED_GO} cannot be pulled, and go is not on PATH; install Go 1.26")
        root = run("go", "env", "GOROOT").strip()
        file = self._folder / "go.Dockerfile"
        file.write_text(f"FROM {self.base}\nCOPY . /usr/local/go\nENV PATH=/usr/local/go/bin:$PATH\n")
        run("docker", "build", "--quiet", "--file", str(file), "--tag", OWN_GO, root, timeout_s=BUILD_S)
        return OWN_GO

    def _make_base(self) -> None:
        if os.geteuid() != 0 or shutil.which("debootstrap") is None:
            pytest.skip(
                f"{PULLED_BASE} cannot be pulled, and making it needs root and debootstrap; {INSTALL}"
            )
        root = self._folder / "base"
        run("debootstrap", "--variant=minbase", "bookworm", str(root), timeout_s=BUILD_S)
        for name, text in SLIM.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        archive = self._folder / "base.tar"
        run("tar", "-C", str(root), "-cf", str(archive), *(f"--exclude=./{name}/*" for name in LEFT_OUT), ".")
        run("docker", "import", "--change", 'CMD ["bash"]', str(archive), OWN_BASE)
        shutil.rmtree(root)
        archive.unlink()
