"""Where a record's event time comes from: its timestamp, a header, or a field of its value.

- `instant`: numbers and text to milliseconds; `Absent`, the reasons why there is no time.
- `source`: `EventTime`, the interface; the record's timestamp and headers.
- `json_field`, `avro_field` (by a part of the schema: `avro_prefix`), `protobuf_field`: a field of the value,
  read without making objects of what is around it.

Rules
1. Any bytes give milliseconds since 1970 (UTC) or an `Absent`. Nothing raises.
2. Making a source refuses a definition that cannot work, with `UnusableField`.
3. Avro and Protobuf are read up to the field, and the first of two equal Protobuf fields counts. JSON is read
   to its end, and the last of two equal keys counts (`json_field`, rule 3, has the exception).
"""
