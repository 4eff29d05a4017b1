"""Parts of the bench `dispatch-latency`: sides that read a topic, a steady feed, their shared histogram, and
sides that are idle."""
