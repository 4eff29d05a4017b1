"""`make demo`: the whole story on one machine. `stage` sets it, `story` plays it, `report` counts."""
