"""Parts of the benches of the stream contract: a filled topic, a receiver that counts, a run of ours."""
