"""The queue's backends against others' queues, and under the load of a large queue."""
