"""The log's texts as typed Arrow columns, and back."""
