"""Where a record's event time comes from: its timestamp, a header, or a field of its value.

- `instant`: numbers and text to milliseconds; `Absent`, the reasons why there is no time.
- `source`: `EventTime`, the interface; the record's timestamp and headers.
- `json_field`, `avro_field` (its plans: `avro_plan`), `protobuf_field`: a field of the value, read without
  decoding what is around it.

Rules
1. Whatever bytes a record holds: the answer is milliseconds since 1970 (UTC) or an `Absent`; nothing raises.
2. A definition that cannot work is refused when the source is made, with `UnusableField`.
3. Nothing behind the field is looked at. Where a field is there twice, the first counts.
"""
