"""How a tutorial's page is read, and when an output is that of the page."""

from __future__ import annotations

import pytest

from tests.tutorial.page import Command, File, Values, steps

PAGE = """\
# A page

```text
a picture
```

```yaml
# a.yaml
region: east
```

```sh
one
two
```

Repeat it until it shows:

```text
done
```

## A section

```text
another picture
```

```sh
three
```
"""


def test_a_page_has_files_commands_and_outputs() -> None:
    assert steps(PAGE) == [
        File(7, "a.yaml", "# a.yaml\nregion: east\n"),
        Command(12, "one\ntwo\n", "done\n", is_repeated=True),
        Command(29, "three\n"),
    ]


@pytest.mark.parametrize("block", ["```yaml\nregion: east\n```\n", "```bash\nls\n```\n"])
def test_a_block_without_the_form_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        steps(block)


@pytest.mark.parametrize(
    ("shown", "output", "is_same"),
    [
        ("lag  missing\n0    3\n", "lag missing\n\n0  3 \n", True),
        ("lag  missing\n0    3\n", "lag missing\n0 4\n", False),
        ("0 3\n", "0 3\n0 4\n", False),
        ("0 3\n…\n", "0 3\n0 4\n", True),
        ("worker-… True\n", "worker-17 running True\n", True),
        ("worker-… True\n", "worker-17 False\n", False),
    ],
)
def test_an_output_is_compared_with_the_page(shown: str, output: str, *, is_same: bool) -> None:
    assert Values({}).match(shown, output) == is_same


def test_an_id_is_the_same_wherever_the_page_has_it() -> None:
    values = Values({})
    assert values.match("made failover-00000001\n", "made failover-abcdef01\n")
    assert values.real("execute failover-00000001") == "execute failover-abcdef01"
    assert not values.match("done failover-00000001\n", "done failover-abcdef02\n")
    assert values.match("done failover-00000001\n", "done failover-abcdef01\n")
