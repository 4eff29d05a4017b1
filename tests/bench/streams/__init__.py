"""What the benches of the stream contract share: a filled topic, a receiver that counts, a run of ours."""
