"""Published contracts, and the code generated from them (see `buf.yaml`, tests/push/test_stream_proto.py)."""
