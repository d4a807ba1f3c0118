"""JSON: a line for each row, flat or in Debezium's envelope."""
