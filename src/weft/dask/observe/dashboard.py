# SPDX-License-Identifier: BSD-3-Clause
"""A page in the scheduler's dashboard, live: the bandwidth between each two workers, and transfers beside predictions.

Needs bokeh, which whoever has a dashboard has. What the cells say is in ``matrix``, the points in ``expected``,
where both come from in ``scheduler``.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from bokeh.layouts import column, row
from bokeh.models import (
    ColorBar,
    ColumnDataSource,
    Div,
    FactorRange,
    FixedTicker,
    HoverTool,
    Legend,
    LogColorMapper,
    PrintfTickFormatter,
    Range1d,
)
from bokeh.palettes import Viridis256
from bokeh.plotting import figure
from distributed.dashboard.components import DashboardComponent, add_periodic_callback

from weft.dask import patches
from weft.dask.observe import expected
from weft.dask.observe.matrix import MOST_WORKERS, Cell, Scale, busiest, cell, empty_cell, heading, lanes_table

if TYPE_CHECKING:
    from bokeh.document import Document
    from distributed.scheduler import Scheduler

    from weft.dask.observe.scheduler import SchedulerTraffic

PAGE = "individual-weft-bandwidth"
TITLE = "Weft Bandwidth"
_INTERVAL_MS = 1000
#: Pixels of a cell and of the text in it, up to so many workers. From 70 a cell has room for two lines.
_SIZES = ((4, 92, 16), (8, 70, 13), (16, 44, 12), (24, 32, 10), (MOST_WORKERS, 13, 0))
_HOVER = """<div style="font-size:12px;line-height:1.5"><b>@source to @destination</b><br>
@bandwidth<br>@messages messages, @nbytes; of them lent: @lent<br>lanes: @lanes<br>
whole requests, as Dask sees them: @dask<br>broken comms: @errors</div>"""
_COLUMNS = [field.name for field in fields(Cell)]
_POINTS = [field.name for field in fields(expected.Point)]
_POINT_HOVER = """<div style="font-size:12px;line-height:1.5"><b>@source to @destination</b>, @nbytes<br>
predicted: @predicted, from the @known_from<br>observed: @observed<br>@kind</div>"""
#: Pixels of the plot of transfers.
_PLOT = 300


def add_page(scheduler: Scheduler, traffic: SchedulerTraffic) -> None:
    """Add the page to the dashboard of a scheduler, if it has one."""

    def document(_: Scheduler, extra: dict[str, Any], doc: Document) -> None:
        parts = Matrix(traffic), Transfers(traffic)
        for part in parts:
            part.update()
            add_periodic_callback(doc, part, _INTERVAL_MS)
        doc.title = f"Dask: {TITLE}"
        doc.add_root(row(*(part.root for part in parts), styles={"flex-wrap": "wrap"}))
        patches.dress_as_dashboard(doc, extra)

    patches.add_dashboard_page(scheduler, PAGE, TITLE, document)


class Matrix(DashboardComponent):  # type: ignore[misc] # distributed has no types
    """Workers by workers: colour and number are the bandwidth from row to column.

    Parameters
    ----------
    traffic : SchedulerTraffic
        Has the pairs, the names of the workers, and what Dask itself sees.
    """

    def __init__(self, traffic: SchedulerTraffic) -> None:
        super().__init__()
        self._traffic = traffic
        self.source = ColumnDataSource({name: [] for name in _COLUMNS})
        self.colours = LogColorMapper(palette=Viridis256, low=0.1, high=10)
        self.heading = Div(name="weft_heading")
        self.lanes = Div(name="weft_lanes")
        self.figure = self._figure()
        self.root = column(self.heading, self.figure, self.lanes, styles={"padding": "8px 16px"})

    def _figure(self) -> Any:
        plot = figure(
            name="weft_matrix",
            x_range=FactorRange(),
            y_range=FactorRange(),
            x_axis_label="to",
            y_axis_label="from",
            x_axis_location="above",
            tools=[HoverTool(tooltips=_HOVER)],
            toolbar_location=None,
        )
        at: dict[str, Any] = {"x": "destination", "y": "source", "source": self.source}
        plot.rect(width=0.96, height=0.96, fill_color="colour", line_color=None, **at)
        self._text = plot.text(text="figure", text_color="ink", text_align="center", text_baseline="middle", **at)
        plot.grid.visible = False
        plot.outline_line_color = None
        plot.axis.major_tick_line_color = None
        plot.axis.axis_line_color = None
        plot.axis.axis_label_text_font_style = "normal"
        formatter = PrintfTickFormatter(format="%g")
        self._ticker = FixedTicker(ticks=[])
        self._bar = ColorBar(
            color_mapper=self.colours,
            ticker=self._ticker,
            formatter=formatter,
            width=14,
            background_fill_color=None,
        )
        plot.add_layout(self._bar, "right")
        return plot

    def update(self) -> None:
        """Show what the latest heartbeats brought."""
        pairs, seen_by_dask = self._traffic.pairs(), self._traffic.seen_by_dask()
        everyone = set(self._traffic.names().values())
        names = busiest(everyone, pairs)
        scale = Scale.over(Viridis256, pairs)
        roomy = self._resize(names)
        at = {(p.source, p.destination): p for p in pairs}
        cells = [
            cell(at[ab], scale, seen_by_dask.get(ab), roomy=roomy) if ab in at else empty_cell(*ab)
            for ab in ((a, b) for a in names for b in names)
        ]
        data: Any = {name: [getattr(each, name) for each in cells] for name in _COLUMNS} if cells else {}
        self.colours.update(low=scale.low, high=scale.high)
        self._ticker.ticks = scale.ticks
        if data and data != self.source.data:
            self.source.data = data
        self.figure.visible = bool(names)
        self._bar.visible = any(p.bandwidth_Bps for p in pairs)
        self.heading.text = heading(len(everyone), pairs)
        self.lanes.text = lanes_table(pairs)

    def _resize(self, names: list[str]) -> bool:
        """Give each worker its row and column; tell whether a cell has room for two lines."""
        size, text = next((size, text) for most, size, text in _SIZES if len(names) <= most)
        plot, longest = self.figure, max(map(len, names), default=0)
        if list(plot.x_range.factors) != names:
            plot.x_range.factors, plot.y_range.factors = names, names[::-1]
            plot.frame_width = plot.frame_height = size * max(1, len(names))
            self._bar.height = plot.frame_height - 24  # or the figures at its ends are cut
            plot.xaxis.major_label_orientation = "horizontal" if longest * 8 <= size else math.pi / 3
            plot.axis.major_label_text_font_size = f"{max(9, min(13, size - 2))}px"
            self._text.glyph.text_font_size = f"{text}px"
            self._text.visible = bool(text)
        return size >= 70


class Transfers(DashboardComponent):  # type: ignore[misc]
    """Transfers as points: what the model of links expected of each, and what it took.

    Parameters
    ----------
    traffic : SchedulerTraffic
        Has the transfers, and the names of the workers.
    """

    def __init__(self, traffic: SchedulerTraffic) -> None:
        super().__init__()
        self._traffic = traffic
        self.source = ColumnDataSource({name: [] for name in _POINTS})
        self.heading = Div(name="weft_expected", width=_PLOT + 80)
        self._lines = ColumnDataSource({"x": [], "y": [], "pattern": []})
        self.figure = self._figure()
        self.root = column(self.heading, self.figure, styles={"padding": "8px 16px"})

    def _figure(self) -> Any:
        plot = figure(
            name="weft_transfers",
            x_axis_type="log",
            y_axis_type="log",
            x_range=Range1d(start=1e-3, end=1),
            y_range=Range1d(start=1e-3, end=1),
            x_axis_label="predicted, s",
            y_axis_label="observed, s",
            frame_width=_PLOT,
            frame_height=_PLOT,
            toolbar_location=None,
        )
        plot.add_layout(Legend(orientation="horizontal", location="center", border_line_color=None), "below")
        plot.multi_line("x", "y", line_dash="pattern", line_color="#888888", source=self._lines)
        at: dict[str, Any] = {"x": "predicted_s", "y": "observed_s", "source": self.source}
        shown = plot.scatter(size=7, fill_color="colour", fill_alpha=0.7, line_color=None, legend_field="kind", **at)
        plot.add_tools(HoverTool(tooltips=_POINT_HOVER, renderers=[shown]))
        self._ticker = FixedTicker(ticks=[])
        plot.axis.ticker = plot.grid.ticker = self._ticker
        plot.axis.formatter = PrintfTickFormatter(format="%g")
        plot.axis.axis_label_text_font_style = "normal"
        plot.outline_line_color = None
        return plot

    def update(self) -> None:
        """Show what the latest heartbeats brought."""
        shown = self._traffic.transfers()
        data: Any = {name: [getattr(each, name) for each in shown] for name in _POINTS}
        self.heading.text = expected.heading(shown)
        self.figure.visible = bool(shown)
        if data == self.source.data:
            return
        self._ticker.ticks = decades = expected.decades(shown)
        low, high = decades[0], decades[-1]
        for axis in (self.figure.x_range, self.figure.y_range):
            axis.update(start=low, end=high)
        factors = (1.0, 2.0, 0.5)
        ys = [[low * factor, high * factor] for factor in factors]
        self._lines.data = {"x": [[low, high] for _ in factors], "y": ys, "pattern": ["solid", "dotted", "dotted"]}
        self.source.data = data
