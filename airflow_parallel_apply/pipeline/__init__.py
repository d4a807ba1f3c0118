"""The pipeline: what flows, and the rooms it flows through: source, log, plan, store, apply, target, coordinate.

Knows neither Airflow nor Spark; both call down into it.
"""
