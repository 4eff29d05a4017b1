"""YAML that tools of YAML 1.1 and of 1.2 read as the same data.

Most tools still read YAML 1.1, for which `on` is true, `1:30` is 90, and `1e3` is text. So text that either
version would take for something else is quoted.
"""

from __future__ import annotations

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.resolver import VersionedResolver

_TEXT, _FLOAT = "tag:yaml.org,2002:str", "tag:yaml.org,2002:float"
_RESOLVERS = VersionedResolver(version=(1, 1)), VersionedResolver(version=(1, 2))


class _Representer(RoundTripRepresenter):
    """Quotes ambiguous text, and writes numbers with a point before an exponent."""

    def represent_text(self, text: str) -> ScalarNode:
        return self.represent_scalar(_TEXT, text, style="'" if _is_ambiguous(text) else None)

    def represent_number(self, number: float) -> ScalarNode:
        node = super().represent_float(number)
        if "e" in node.value and "." not in node.value:
            node.value = node.value.replace("e", ".0e")
        return node


_Representer.add_representer(str, _Representer.represent_text)
_Representer.add_representer(float, _Representer.represent_number)


def _is_ambiguous(text: str) -> bool:
    if any(str(one.resolve(ScalarNode, text, (True, False))) != _TEXT for one in _RESOLVERS):
        return True
    try:
        float(text)  # numbers that only some tools know, such as +.5
    except ValueError:
        return False
    return True


def yaml_writer() -> YAML:
    """A writer of YAML; its `dump` takes the data and a stream."""
    yaml = YAML()
    yaml.Representer = _Representer
    return yaml
