"""Fetches jars from Maven Central with the Apache Ivy that PySpark's wheel carries.

Ivy gets settings of its own with one resolver, whose default is Maven Central: no address stands in the
project. The default settings would also look into `~/.m2` and fail on a pom whose jar is missing there.
`SWITCHYARD_IVY_SETTINGS` names another settings file, for networks that only reach a mirror.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from app.dev.yard.errors import FetchError
from app.dev.yard.java import Java, network_flags

FETCH_TIMEOUT_S = (
    900.0  # 46 MB in fifty requests; a slow line needs minutes, a dead one must not take for ever
)
CONNECT_TIMEOUT_MS = 15_000
READ_TIMEOUT_MS = 60_000
SETTINGS_VARIABLE = "SWITCHYARD_IVY_SETTINGS"

# "found org.slf4j#slf4j-api;1.7.36 in central", "[SUCCESSFUL ] org.slf4j#slf4j-api;1.7.36!slf4j-api.jar"
_STEP = re.compile(r"^(?:found|\[SUCCESSFUL \]) [^#]+#([^;]+);")
_REASON = re.compile(r"Host \S+ not found|(?<=\()[\w.]+(?:Exception|Error): .*(?=\))|module not found: .*")
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir={cache}/>
  <timeout-constraints>
    <timeout-constraint name="bounded" connectionTimeout="{connect_ms}" readTimeout="{read_ms}"/>
  </timeout-constraints>
  <resolvers><ibiblio name="central" m2compatible="true" timeoutConstraint="bounded"/></resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0">
  <info organisation="switchyard" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


def retrieve(
    java: Java,
    coordinates: Iterable[str],
    target: Path,
    work: Path,
    *,
    pattern: str = "[artifact]-[revision].[ext]",
    transitive: bool = False,
    on_step: Callable[[str], None] = lambda _line: None,
    keep_open: tuple[int, ...] = (),
) -> None:
    """Puts the jars of `coordinates` ("group:artifact:version") into the folder `target`.

    `work` keeps Ivy's own cache, so that a second attempt goes on where the first one ended. `on_step` gets
    an artifact's name twice: once its description was read, and once its jar has arrived. Ivy inherits
    the descriptors `keep_open` (a lock must outlive us while Ivy still writes). Raises `FetchError` with
    Ivy's reason.
    """
    work.mkdir(parents=True, exist_ok=True)
    settings, module = work / "ivysettings.xml", work / "ivy.xml"
    settings.write_text(
        _SETTINGS.format(
            cache=quoteattr(str(work / "cache")), connect_ms=CONNECT_TIMEOUT_MS, read_ms=READ_TIMEOUT_MS
        )
    )
    module.write_text(_MODULE.format(dependencies="\n".join(_dependency(c, transitive) for c in coordinates)))
    command = [
        str(java.executable),
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        *network_flags(java, work),
        "-jar",
        str(ivy_jar()),
        "-settings",
        os.environ.get(SETTINGS_VARIABLE, str(settings)),
        "-ivy",
        str(module),
        "-confs",
        "default",
        "-retrieve",
        str(target / pattern),
    ]  # fmt: skip - one option and its value a line
    _run(command, on_step, keep_open)


def ivy_jar() -> Path:
    """Ivy's jar in PySpark's wheel, found without importing PySpark."""
    spec = importlib.util.find_spec("pyspark")
    folders = spec.submodule_search_locations if spec else None
    jars = sorted(Path(folders[0]).glob("jars/ivy-*.jar")) if folders else []
    if not jars:
        msg = "PySpark, whose wheel carries Apache Ivy, is not installed: `pip install pyspark==4.0.0`."
        raise FetchError(msg)
    return jars[-1]


def _dependency(coordinate: str, transitive: bool) -> str:
    group, artifact, version = (quoteattr(part) for part in coordinate.split(":"))
    conf, flag = ("default->default", "true") if transitive else ("default->master", "false")
    return f'    <dependency org={group} name={artifact} rev={version} conf="{conf}" transitive="{flag}"/>'


def _vagueness(reason: str) -> bool:
    """Ivy says that a module was not found also when the network was not."""
    return reason.startswith("module not found")


def _run(command: list[str], on_step: Callable[[str], None], keep_open: tuple[int, ...]) -> None:
    reasons: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=keep_open,
    ) as ivy:
        timer = threading.Timer(FETCH_TIMEOUT_S, ivy.kill)
        timer.start()
        try:
            for line in ivy.stdout or ():
                text = line.strip()
                if step := _STEP.search(text):
                    on_step(step.group(1))
                elif reason := _REASON.search(text):
                    reasons.append(reason.group())
            status = ivy.wait()
        finally:
            timer.cancel()
            ivy.kill()
    if status != 0:
        raise FetchError(min(reasons, key=_vagueness, default=f"Ivy ended with status {status}"))
