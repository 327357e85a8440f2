# SPDX-License-Identifier: BSD-3-Clause
"""weft's counters for Prometheus, beside Dask's own under ``/metrics`` of a worker and of the scheduler.

By lane, not by peer: a series for each pair of 200 workers would be 40,000 of them for every metric.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from weft.dask import traffic

_LANE = ["lane"]
#: Counters of a record, by the metric that they add up in.
_COUNTERS = {
    "weft_sent_messages": ("sent_messages", "Messages sent over ucx://"),
    "weft_received_messages": ("received_messages", "Messages received over ucx://"),
    "weft_send_seconds": ("sent_seconds", "Seconds from each send to its completion"),
    "weft_errors": ("errors", "Comms that broke because the peer was lost"),
}


@functools.cache
def register() -> None:
    """Have every scrape of this process include weft's metrics."""
    prometheus_client.REGISTRY.register(TrafficCollector())


class TrafficCollector:
    """The counters of :mod:`weft.dask.traffic`, added up by lane at each scrape."""

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield one family for each counter."""
        by_lane: defaultdict[str, list[traffic.Record]] = defaultdict(list)
        for record in list(traffic.records.values()):
            by_lane[",".join(record.lanes)].append(record)
        yield _bytes("sent", by_lane, lent="lent_nbytes")
        yield _bytes("received", by_lane, lent="borrowed_nbytes")
        for metric, (name, text) in _COUNTERS.items():
            family = CounterMetricFamily(metric, text, labels=_LANE)
            for lane, records in by_lane.items():
                family.add_metric([lane], sum(getattr(r, name) for r in records))
            yield family
        comms = GaugeMetricFamily("weft_comms", "Comms over ucx:// that this process has", labels=_LANE)
        for lane, records in by_lane.items():
            comms.add_metric([lane], sum(r.comms for r in records))
        yield comms


def _bytes(way: str, by_lane: dict[str, list[traffic.Record]], *, lent: str) -> CounterMetricFamily:
    text = (
        f"Bytes {way} over ucx://; those that were lent by one process and mapped by the other have a lane of their own"
    )
    family = CounterMetricFamily(f"weft_{way}_bytes", text, labels=_LANE)
    total_lent = 0
    for lane, records in by_lane.items():
        lent_nbytes = sum(getattr(r, lent) for r in records)
        family.add_metric([lane], sum(getattr(r, f"{way}_nbytes") for r in records) - lent_nbytes)
        total_lent += lent_nbytes
    family.add_metric(["lent"], total_lent)
    return family
