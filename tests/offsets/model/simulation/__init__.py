"""Three regions, simulated: logs, the routes' lanes, a group that moves from region to region."""
