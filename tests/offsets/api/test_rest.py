"""Offsets across clusters over the REST API, checked against its description, on real clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.controllog.events import OperatorAct
from app.dev.yard import Yard
from app.offsets.model.group_sync import BEYOND_MAPPED
from tests.offsets.clusters import HERE, NOWHERE, THERE
from tests.offsets.console import served
from tests.web.client import Console
from tests.web.http.test_openapi import Client

MAP, SYNC, AT_TIME = "/api/v1/offsets/map", "/api/v1/offsets/sync", "/api/v1/offsets/at-time"
BETWEEN = {"from": HERE, "to": THERE}


def test_positions_are_mapped_explained_committed_and_found_by_time(
    yard: Yard, tmp_path: Path, topic_name: str
) -> None:
    with served(yard, tmp_path, topic_name) as at:
        client = Client(at.url)
        mapped = client.ask("GET", MAP, query={**BETWEEN, "group": at.group}).json()
        (topic,) = mapped["topics"]
        (partition,) = topic["partitions"]
        (source,) = partition["sources"]
        assert (topic["road"], topic["topic"], topic["elsewhere"]) == ("copy", topic_name, [])
        assert {name: partition[name] for name in ("next_offset", "log_end", "again", "least", "why")} == {
            "next_offset": 60, "log_end": 110, "again": 5, "least": f"{HERE}/{topic_name}-0", "why": "",
        }  # fmt: skip
        assert (source["cluster"], source["route"], source["read_up_to"]) == (HERE, "mirror", 55)
        assert (source["barrier"]["source_end"], source["barrier"]["target_end"]) == (50, 60)
        given = client.ask("GET", MAP, query={**BETWEEN, "topic": topic_name, "offset": ["0:100"]}).json()
        assert given["topics"][0]["partitions"][0]["next_offset"] == 110
        back = client.ask(
            "GET", MAP, query={"from": THERE, "to": HERE, "topic": topic_name, "offset": ["0:62"]}
        ).json()["topics"][0]
        assert (back["road"], back["partitions"][0]["next_offset"]) == ("back", 50)
        assert {one["state"] for one in mapped["regions"]} == {"own", "none"}

        foreseen = client.ask("POST", SYNC, body={**BETWEEN, "group": at.group}).json()
        assert (foreseen["state"], foreseen["done"], foreseen["partitions"][0]["commit"]) == (
            "synced",
            False,
            60,
        )
        assert foreseen["partitions"][0]["have"] is None
        done = client.ask("POST", SYNC, body={**BETWEEN, "group": at.group, "execute": True}).json()
        assert done["done"]
        again = client.ask("POST", SYNC, body={**BETWEEN, "group": at.group, "execute": True}).json()
        assert (again["state"], again["partitions"][0]["have"]) == ("unchanged", 60)
        acts = [one for one in at.fed.control.appended if isinstance(one, OperatorAct)]
        assert [(one.subject, one.action) for one in acts] == [(at.group, "offsets-sync")], (
            "what was done, once"
        )
        wrong_way = client.ask("POST", SYNC, body={"from": THERE, "to": HERE, "group": at.group}).json()
        assert (wrong_way["state"], wrong_way["why"]) == ("refused", BEYOND_MAPPED), (
            "the map's answer is not further"
        )

        kept = client.ask("GET", SYNC).json()["items"]
        assert [(row["group"], row["state"], row["good_ms"]) for row in kept] == [
            ("a", "unchanged", 5), ("b", "refused", None), (None, "no-round", None), ("p", "live", 4),
        ]  # fmt: skip
        assert [(row["route"], row["workload"], row["from"]) for row in kept[2:]] == [
            ("other", None, HERE), (None, "p/t", THERE),
        ]  # fmt: skip
        sync_fields = at.fed.regions.passive_sync_fields("p/t")
        assert sync_fields.pop("lag_s") > 1e9
        assert sync_fields == {
            "region": "west", "from": THERE, "to": HERE, "state": "live", "why": "<b>somebody</b>",
        }  # fmt: skip
        assert at.fed.regions.passive_sync_fields("p/another") is None
        times = client.ask("GET", AT_TIME, query={"topic": topic_name, "time": "1h"}).json()
        assert {one["cluster"]: bool(one["error"]) for one in times["topics"]} == {
            HERE: False, THERE: False, NOWHERE: True,
        }  # fmt: skip
        beyond = client.ask("GET", AT_TIME, query={"topic": topic_name, "time": "0s", "cluster": HERE}).json()
        assert beyond["topics"][0]["partitions"][0]["note"] == "beyond-end"
        metrics = Console(at.url, at.fed).metrics()
        assert 'switchyard_offset_sync_groups{route="mirror",state="refused"} 1.0' in metrics
        assert 'switchyard_offset_sync_rounds_total{route="mirror"} 3.0' in metrics
        assert 'switchyard_passive_offsets_state{state="live",workload="p/t"} 1.0' in metrics
        assert 'switchyard_passive_offsets_lag_seconds{workload="p/t"} ' in metrics

        def refused(status: int, words: str, method: str, path: str, **given: Any) -> None:
            answer = client.ask(method, path, status, **given).json()
            assert words in answer["detail"], answer

        refused(400, "group=NAME", "GET", MAP, query=BETWEEN)
        refused(400, "name the topic", "GET", MAP, query={**BETWEEN, "offset": ["0:1"]})
        refused(400, "is given twice", "GET", MAP, query={**BETWEEN, "topic": "t", "offset": ["0:1", "0:2"]})
        refused(400, "there are here, nowhere, there", "GET", MAP, query={"group": "g", "to": THERE})
        refused(404, "there is no cluster 'x'", "GET", MAP, query={"from": "x", "to": THERE, "group": "g"})
        refused(404, "has no position", "GET", MAP, query={**BETWEEN, "group": "nobody"})
        refused(404, "no offset sync relates", "GET", MAP, query={**BETWEEN, "topic": "x", "offset": ["0:1"]})
        refused(404, "is in none of", "GET", AT_TIME, query={"topic": "none", "time": "1h", "cluster": HERE})
        refused(400, "is not a time", "GET", AT_TIME, query={"topic": topic_name, "time": "soon"})
        refused(400, "another cluster", "POST", SYNC, body={"from": HERE, "to": HERE, "group": at.group})
        refused(404, "has no position", "POST", SYNC, body={**BETWEEN, "group": "nobody"})


def test_a_worker_without_regions_answers_503(console: Console) -> None:
    answer = console.ask("GET", f"{MAP}?from=east&to=west&topic=t&offset=0:1")
    assert (answer.status, "knows of no regions" in answer.json["detail"]) == (503, True)
