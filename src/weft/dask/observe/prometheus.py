# SPDX-License-Identifier: BSD-3-Clause
"""weft's counters for Prometheus, next to Dask's own, under ``/metrics`` of a worker and of the scheduler.

They are by lane, not by peer: a series for each pair of 200 workers would be 40,000 series per metric.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from weft.dask.observe import traffic

_LANE = ["lane"]
#: Counters of traffic, by metric.
_COUNTERS = {
    "weft_sent_messages": ("sent_messages", "Messages sent over ucx://"),
    "weft_received_messages": ("received_messages", "Messages received over ucx://"),
    "weft_send_seconds": ("sent_seconds", "Seconds from each send to its completion"),
    "weft_errors": ("errors", "Comms that broke because the peer was lost"),
}


@functools.cache
def register() -> None:
    """Include weft's metrics in every scrape of this process."""
    prometheus_client.REGISTRY.register(TrafficCollector())


class TrafficCollector:
    """The counters of :mod:`weft.dask.observe.traffic`, by lane."""

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield one family for each counter."""
        lanes = list(traffic.by_lanes.values())
        yield _bytes("sent", lanes, lent="lent_nbytes")
        yield _bytes("received", lanes, lent="borrowed_nbytes")
        for metric, (name, text) in _COUNTERS.items():
            family = CounterMetricFamily(metric, text, labels=_LANE)
            for over in lanes:
                family.add_metric([_label(over)], getattr(over, name))
            yield family
        comms = GaugeMetricFamily("weft_comms", "Comms over ucx:// that this process has", labels=_LANE)
        for over in lanes:
            comms.add_metric([_label(over)], over.comms)
        yield comms


def _label(over: traffic.Traffic) -> str:
    return ",".join(over.lanes)


def _bytes(way: str, lanes: list[traffic.Traffic], *, lent: str) -> CounterMetricFamily:
    text = (
        f"Bytes {way} over ucx://; those that were lent by one process and mapped by the other have a lane of their own"
    )
    family = CounterMetricFamily(f"weft_{way}_bytes", text, labels=_LANE)
    total_lent = 0
    for over in lanes:
        lent_nbytes = getattr(over, lent)
        family.add_metric([_label(over)], getattr(over, f"{way}_nbytes") - lent_nbytes)
        total_lent += lent_nbytes
    family.add_metric(["lent"], total_lent)
    return family
