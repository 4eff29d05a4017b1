"""`make demo`: the whole story on one machine. `stage` sets it, `story` plays it, `report` counts."""

MIN_MESSAGES = 75  # fewer leave none for the story's end
