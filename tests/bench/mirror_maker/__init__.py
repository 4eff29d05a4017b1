"""MirrorMaker 2 as a peer: fetched from Maven Central, run as its own process on the stage."""

from tests.bench.mirror_maker.peer import VERSION, class_path, start

__all__ = ["VERSION", "class_path", "start"]
