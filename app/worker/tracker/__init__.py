"""The tracker topic: takeovers and snapshots are sent to it, folded and answered."""
