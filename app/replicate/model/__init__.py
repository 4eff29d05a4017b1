"""Which topics a route copies, under which names, without loops; what destinations need. Pure."""
