"""Messages of a Kafka topic as samples: a pin has ranges of offsets where it has files of other formats.

`offsets` names and counts ranges, `topic` reads messages, `arriving_messages` finds new ones for the next pin, and
`message_format` reads pinned ones, by the decoders of `values`.
"""
