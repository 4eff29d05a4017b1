"""The pure models of offsets: offset map, translation, group positions, progress and source frontiers."""
