"""Random histories of the simulated regions: acts of a name and two small numbers. Impossible acts are
skipped."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from tests.offsets.model.simulation.logs import Lane
from tests.offsets.model.simulation.world import REGIONS, World

Act = tuple[str, int, int]  # what, who, how much

OFTEN: dict[str, float] = {
    "produce": 12, "flow": 14, "copy": 6, "land": 6, "acknowledge": 6, "unheard": 2, "save-lane": 4,
    "idle": 8, "take-over": 2, "unsure": 1, "bump": 1, "haunt": 2,
    "read": 14, "finish": 14, "save": 8, "kill": 1.5, "look-again": 6,
    "tell": 10, "tell-lines": 5, "tell-trackers": 5,
    "fail-over": 2, "force": 2, "zombie": 1, "down": 0.6, "up": 2, "lose": 0.12,
    "need": 2, "marker": 1.5, "retain": 0.7, "retain-source": 0.7, "compact": 1.5, "compact-source": 1.5,
    "source-anew": 0.3, "cut": 2, "copy-anew": 0.25,
}  # fmt: skip
ROUTES: dict[str, float] = {
    "delete-route": 4, "deploy-route": 2, "look": 8, "hide": 3, "show": 1, "elect": 2,
}  # fmt: skip


RARELY = [
    "compact", "compact-source", "copy-anew", "cut", "marker", "retain", "retain-source",
    "source-anew", "unheard", "unsure", "zombie",
]  # fmt: skip


def history(seed: int, acts: int = 220, *, calm: bool = False, routes: bool = False) -> list[Act]:
    """A random history. `calm`: regions and workers fail, but logs keep their records. `routes`: routes
    are deleted and come back."""
    chance = random.Random(seed)
    often = {name: weight for name, weight in OFTEN.items() if not (calm and name in RARELY)}
    often |= ROUTES if routes else {}
    for name in ("save", "tell-trackers"):
        often[name] *= chance.choice([1, 3, 8])  # a worker saves often, and what it saves soon comes across
    for name in [] if calm else chance.sample(RARELY, 3):
        often[name] *= 4
    names = chance.choices(list(often), list(often.values()), k=acts)
    return [(name, chance.randrange(10_000), chance.randint(1, 6)) for name in names]


def play(world: World, acts: Iterable[Act]) -> None:
    """Plays the acts in order. Raises Broken."""
    for name, who, count in acts:
        world.now += 1
        if name not in _LANE:
            _ACTS[name](world, who, count)
        elif world.works(lane := world.lanes[who % len(world.lanes)], gone=name == "haunt"):
            _LANE[name](lane, count, world.now)


# -- records and lanes -----------------------------------------------------------------------------------


def _produce(world: World, who: int, count: int) -> None:
    source = world.sources[who % len(world.sources)]
    if source.region in world.down:
        return
    for _ in range(2 * count):
        world.records += 1
        world.where[world.records] = source, source.generation, source.end
        source.records.append(world.records if world.chance.random() < 0.9 else None)
        if source.records[-1] is None:
            del world.where[world.records]


def _flow(world: World, who: int, count: int) -> None:
    """Copies many records."""
    for lane in world.chance.sample(world.lanes, len(world.lanes) // 2):
        if world.works(lane):
            for _ in range(count):
                lane.copy(1 + who % 5, world.now)
                lane.land(1)
                lane.acknowledge(1, world.now)


def _idle(world: World, _who: int, _count: int) -> None:
    for lane in world.lanes:
        if world.works(lane) and world.chance.random() < 0.5:
            lane.idle(world.now)


# -- what happens to logs --------------------------------------------------------------------------------


def _marker(world: World, who: int, count: int) -> None:
    topic = world.topics[REGIONS[who % 3]]
    if topic.region not in world.down:
        topic.logs[who % len(topic.logs)].end += count % 3


def _hide(world: World, who: int, count: int) -> None:
    topic = world.topics[REGIONS[who % 3]]
    if topic.region not in world.down:
        topic.logs[who % len(topic.logs)].hide(2 * count)


def _show(world: World, who: int, _count: int) -> None:
    topic = world.topics[REGIONS[who % 3]]
    if topic.region not in world.down:
        topic.logs[who % len(topic.logs)].show()


def _elect(world: World, who: int, _count: int) -> None:
    """Gives an aggregate log another leader, in a clean election: it has the log up to the high watermark."""
    topic = world.topics[REGIONS[who % 3]]
    topic.logs[who % len(topic.logs)].elect()


def _retain(world: World, who: int, count: int) -> None:
    topic = world.topics[REGIONS[who % 3]]
    if topic.region not in world.down:
        log = topic.logs[who % len(topic.logs)]
        log.delete_below(log.start + 3 * count)


def _compact(world: World, who: int, count: int) -> None:
    topic = world.topics[REGIONS[who % 3]]
    log = topic.logs[who % len(topic.logs)]
    if topic.region not in world.down and log.batches:
        batch = log.batches[who % len(log.batches)]
        record = batch.records[count % len(batch.records)]
        log.compact(batch, count % len(batch.records))
        if record is not None:
            world.gone({record}, [topic.region])


def _retain_source(world: World, who: int, count: int) -> None:
    source = world.sources[who % len(world.sources)]
    before = source.kept()
    source.delete_below(source.start + count)
    world.gone(before - source.kept())


def _compact_source(world: World, who: int, count: int) -> None:
    source = world.sources[who % len(world.sources)]
    at = source.end - count
    if at >= 0 and (record := source.records[at]) is not None:
        source.records[at] = None
        world.gone({record})


def _recreate_source(world: World, who: int, _count: int) -> None:
    source = world.sources[who % len(world.sources)]
    before = source.kept()
    source.recreate()
    world.gone(before)


def _cut(world: World, who: int, count: int) -> None:
    """Gives a regional log another leader, in an unclean election: it lacks the end. Only lanes that have
    read further notice it when they fetch."""
    source = world.sources[who % len(world.sources)]
    at = source.end - count + 1
    if at < source.start:
        return
    before = source.kept()
    world.cut_off |= {
        record
        for record, (log, generation, offset) in world.where.items()
        if log is source and generation == source.generation and offset >= at
    }
    source.cut(at)
    world.gone(before - source.kept())


def _recreate_copy(world: World, who: int, _count: int) -> None:
    topic = world.topics[REGIONS[who % 3]]
    if topic.region in world.down:
        return
    if world.zombie is not None and world.zombie.region == topic.region:
        world.zombie = None
    topic.generation += 1
    world.lineages[topic.region] += 1
    for log in topic.logs:
        log.recreate()
    for lane in world.lanes:
        if lane.target is topic:
            lane.target_recreated()
    if world.stint.region == topic.region:
        world.leave()
        world.begin(topic.region)


def _delete_route(world: World, who: int, count: int) -> None:
    """Deletes a route whose lines have arrived, for a source all of them or none."""
    lanes = [lane for lane in world.route(who) if not lane.gone]
    has_line = {lane.copying is not None for lane in lanes}
    if (
        len(has_line) == 1
        and world.works(lanes[0])
        and all(lane.producer is None or True in has_line for lane in lanes)
    ):
        for lane in lanes:
            if count % 2:
                lane.copy(count, world.now)  # that is on its way, then
            lane.delete(sure=count > 2)


def _deploy_route(world: World, who: int, count: int) -> None:
    """Deploys a deleted route again, or one with another name."""
    lanes = world.route(who)
    if not all(lane.gone for lane in lanes) or not world.works(lanes[0], gone=True):
        return
    newest = max(lane.generation for lane in lanes)
    for lane in lanes:
        if lane.generation == newest and count > 2:
            lane.come_back()
        elif lane.generation == newest:
            world.lanes.append(lane.under_new_route())


def _look(world: World, _who: int, _count: int) -> None:
    for lane in world.lanes:
        if lane.gone and world.works(lane, gone=True) and world.chance.random() < 0.7:
            lane.look(asks_source=world.chance.random() < 0.8)


# -- the group -------------------------------------------------------------------------------------------


def _read(world: World, who: int, count: int) -> None:
    for at in world.stint.parts:
        if world.chance.random() < 0.7:
            world.read(world.stint, at, count)
    if world.zombie is not None:
        world.read(world.zombie, who, count)


def _finish(world: World, who: int, count: int) -> None:
    for at in world.stint.parts:
        if world.chance.random() < 0.8:
            world.finish(world.stint, at, who if count < 3 else 0, count * count)
    if world.zombie is not None:
        world.finish(world.zombie, who, who, count * count)


def _save(world: World, who: int, count: int) -> None:
    parts = [at for at in world.stint.parts if world.chance.random() < 0.8]
    world.save(world.stint, parts)


def _kill(world: World, _who: int, _count: int) -> None:
    """Another worker continues in the group's region, from saved state."""
    world.begin(world.stint.region)


def _look_again(world: World, who: int, _count: int) -> None:
    """More may be known now, so undecided records are delivered or wait on."""
    world.look_again()
    for part in world.stint.parts.values():
        part.patient = part.patient and who % 4 > 0


def _copy_tables(world: World, who: int, count: int, *, lines: bool = True, trackers: bool = True) -> None:
    """Copies some records of a region's tables to other regions."""
    world.publish_lines()
    for here, there in world.line_copies:
        if {here, there} & world.down or world.chance.random() < 0.3:
            continue
        if lines:
            late = [source.place for source in world.sources if count <= 3 and world.chance.random() < 0.3]
            for at, copying in world.lines[there].items():
                if at[0] not in late:
                    world.line_copies[here, there][at] = copying
        if trackers:
            for part, saved in world.trackers[there].items():
                if count > 3 or world.chance.random() < 0.7:
                    world.tracker_copies[here, there][part] = saved


def _go(world: World, to: str, who: int, *, forced: bool) -> None:
    former = world.stint
    if not forced:
        world.save(former, former.parts)
        world.publish_lines()
        world.tracker_copies[to, former.region].update(world.trackers[former.region])
        world.line_copies[to, former.region].update(world.lines[former.region])
    world.leave()
    world.zombie = None
    if forced and former.region not in world.down and who % 3 == 0:
        world.zombie = former
    stint = world.begin(to, fails_over=True)
    for part in stint.parts.values():
        part.patient = who % 5 > 0


def _fail_over(world: World, who: int, _count: int) -> None:
    to = [region for region in REGIONS if region not in world.down and region != world.stint.region]
    if to:
        _go(world, to[who % len(to)], who, forced=False)


def _force(world: World, who: int, _count: int) -> None:
    to = [region for region in REGIONS if region not in world.down and region != world.stint.region]
    if to:
        _go(world, to[who % len(to)], who, forced=True)


def _zombie(world: World, who: int, _count: int) -> None:
    """A pump in the region that the group has left saves, or ends."""
    if world.zombie is not None and who % 2:
        world.save(world.zombie, world.zombie.parts)
    elif world.zombie is not None:
        world.zombie = None


def _down(world: World, who: int, count: int) -> None:
    region = REGIONS[who % 3]
    if len(world.down | {region}) == len(REGIONS):
        return
    world.down.add(region)
    if world.zombie is not None and world.zombie.region == region:
        world.zombie = None
    for lane in world.lanes:
        if lane.target.region == region and not lane.gone:
            lane.take_over(sure=count > 2)
    if world.stint.region == region:
        _force(world, who, count)


def _up(world: World, who: int, _count: int) -> None:
    back = sorted(world.down - world.lost)
    if back:
        world.down.discard(back[who % len(back)])


def _lose(world: World, who: int, count: int) -> None:
    if not world.lost:
        _down(world, who, count)
        world.lost |= world.down & {REGIONS[who % 3]}


_LANE: dict[str, Callable[[Lane, int, int], None]] = {
    "copy": lambda lane, count, now: lane.copy(count, now),
    "land": lambda lane, count, _now: lane.land(count),
    "acknowledge": lambda lane, count, now: lane.acknowledge(count, now),
    "unheard": lambda lane, count, now: lane.acknowledge(count, now, drops=True),
    "save-lane": lambda lane, _count, _now: lane.save(),
    "take-over": lambda lane, count, _now: lane.take_over(sure=True, closes=count > 1),
    "unsure": lambda lane, _count, _now: lane.take_over(sure=False),
    "bump": lambda lane, _count, _now: lane.bump(),
    "haunt": lambda lane, _count, _now: lane.haunt(),
}
_ACTS: dict[str, Callable[[World, int, int], None]] = {
    "produce": _produce, "flow": _flow, "idle": _idle, "marker": _marker, "retain": _retain,
    "retain-source": _retain_source, "compact": _compact, "compact-source": _compact_source,
    "source-anew": _recreate_source, "cut": _cut, "copy-anew": _recreate_copy,
    "delete-route": _delete_route, "deploy-route": _deploy_route, "look": _look,
    "hide": _hide, "show": _show, "elect": _elect,
    "read": _read, "finish": _finish, "save": _save, "kill": _kill, "look-again": _look_again,
    "tell": _copy_tables,
    "tell-lines": lambda world, who, count: _copy_tables(world, who, count, trackers=False),
    "tell-trackers": lambda world, who, count: _copy_tables(world, who, count, lines=False),
    "need": lambda world, _who, _count: world.needed(),
    "fail-over": _fail_over, "force": _force, "zombie": _zombie, "down": _down, "up": _up, "lose": _lose,
}  # fmt: skip
