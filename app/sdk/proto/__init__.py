"""Published contracts, and the code generated from them (see `buf.yaml`,
tests/sdk/proto/test_contract.py)."""
