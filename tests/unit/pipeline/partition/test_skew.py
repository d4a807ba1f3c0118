"""People are told of channels of uneven size."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.partition.skew import cost_of_skew, skew_of


def test_even_channels_are_not_worth_a_word() -> None:
    assert skew_of([10, 10, 11]) < 1.1
    assert cost_of_skew([10_000, 10_000, 11_000]) is None
    assert cost_of_skew([0, 0]) is None
    assert cost_of_skew([1, 0]) is None


def test_the_fullest_channel_is_named_with_what_its_merges_cost() -> None:
    assert skew_of([10, 80, 10, 0]) == 3.2
    assert cost_of_skew([10_000, 80_000, 10_000, 0]) == (
        "channel 1 has 80% of the changes: they are staged evenly, but with consistency=channel merged as if there "
        "were 1.2 channels instead of 4"
    )
