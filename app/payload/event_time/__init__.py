"""Reads a record's event time from a header or from a field of its value.

- `instant`: numbers and text to milliseconds; `Absent`, the reasons for no time.
- `source`: `EventTime`, the interface; event times in headers.
- `json_field`, `avro_field` (with `avro_prefix`), `protobuf_field`: event times in a field of the value. They
  make no objects of the fields around it.

Rules
1. Any bytes give milliseconds since 1970 (UTC) or an `Absent`. Reading never raises.
2. A definition that cannot work is refused with `UnusableField` when its source is made.
3. Avro and Protobuf are read up to the field, and the first of two equal Protobuf fields counts. JSON is read
   to its end, and the last of two equal keys counts (`json_field`, rule 3, has an exception).
"""
