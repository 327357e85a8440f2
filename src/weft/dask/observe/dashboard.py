# SPDX-License-Identifier: BSD-3-Clause
"""A page in the scheduler's dashboard: the bandwidth between each two workers, live, and the lanes that carry it.

Needs bokeh, which whoever has a dashboard has. What the cells say is in ``matrix``, where it comes from in
``scheduler``.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from bokeh.layouts import column
from bokeh.models import (
    ColorBar,
    ColumnDataSource,
    Div,
    FactorRange,
    FixedTicker,
    HoverTool,
    LogColorMapper,
    PrintfTickFormatter,
)
from bokeh.palettes import Viridis256
from bokeh.plotting import figure
from distributed.dashboard.components import DashboardComponent, add_periodic_callback

from weft.dask import patches
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


def add_page(scheduler: Scheduler, traffic: SchedulerTraffic) -> None:
    """Add the page to the dashboard of a scheduler, if it has one."""

    def document(_: Scheduler, extra: dict[str, Any], doc: Document) -> None:
        matrix = Matrix(traffic)
        matrix.update()
        add_periodic_callback(doc, matrix, _INTERVAL_MS)
        doc.title = f"Dask: {TITLE}"
        doc.add_root(matrix.root)
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
