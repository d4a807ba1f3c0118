"""Avro: object container files, and messages in Confluent's wire format."""
