"""Records written by hand are those that protobuf writes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.summary_pb2 import Summary

from lightning_hooks.trackers.events import scalar_summary

TAGS = st.text(min_size=1, max_size=300, alphabet=st.characters(exclude_categories=("Cs",)))


@given(st.dictionaries(TAGS, st.floats(width=32), max_size=20))
def test_the_bytes_are_protobufs(values: dict[str, float]) -> None:
    expected = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
    assert scalar_summary(values) == expected.SerializeToString()


def test_what_float32_cannot_hold_is_infinite_and_nan_stays() -> None:
    read = Summary.FromString(scalar_summary({"a": 1e300, "b": -1e300, "c": math.nan, "d": math.inf, "e": 1e-300, "f": 3}))
    values = {value.tag: value.simple_value for value in read.value}
    assert math.isnan(values.pop("c"))
    assert values == {"a": math.inf, "b": -math.inf, "d": math.inf, "e": 0.0, "f": 3.0}


def test_a_lone_surrogate_in_a_name_does_not_raise() -> None:
    assert Summary.FromString(scalar_summary({"a\ud800b": 1.0})).value[0].tag == "a?b"
