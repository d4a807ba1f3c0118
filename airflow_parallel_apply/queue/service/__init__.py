"""The queue as a service: `python -m airflow_parallel_apply.queue serve`."""
