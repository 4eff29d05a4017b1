"""Record values: Protobuf, JSON and Avro, their schemas, event times, and the senders' interceptors."""
