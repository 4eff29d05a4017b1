"""The tracker topic: takeovers and snapshots, asked, answered, folded."""
