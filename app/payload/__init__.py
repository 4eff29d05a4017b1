"""Values: Protobuf, JSON, Avro; schemas, and interceptors of senders."""
