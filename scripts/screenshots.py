#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Take the screenshots of the docs in Chromium: the site, the demo's page, the dashboard; and look for overflow.

    uv run nox -s docs && uv run python scripts/screenshots.py [--out docs/_static] [NAME ...]

It needs chromium, Pillow and bokeh. The site is read from build/docs, the demo's page is drawn from its record in
docs/benchmarks, and the dashboard is that of a small cluster of its own. The status is 1 if a page is wider than its
window, as a phone would show it.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import http.server
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.dask import browser  # noqa: E402

DESKTOP, PHONE = (1280, 860), (390, 844)
LIMIT_NBYTES = 150_000
IDLE = "document.readyState === 'complete' && document.fonts.status === 'loaded'"


@dataclass(frozen=True)
class Shot:
    """One screenshot: where the page is, how large the window, and what to wait for."""

    name: str
    page: str
    size: tuple[int, int] = DESKTOP
    ready: str = IDLE


SITE = [
    Shot("site-first-page", "index.html"),
    Shot("site-first-page-phone", "index.html", PHONE),
    Shot("site-reference", "api/connections.html"),
    Shot("site-reference-phone", "api/connections.html", PHONE),
]
DEMO = [Shot("demo-page", "demo.html", (1280, 1000)), Shot("demo-page-phone", "demo.html", PHONE)]
DASHBOARD = [
    Shot(
        "dashboard",
        "individual-weft-bandwidth",
        (1280, 640),
        f"{IDLE} && window.Bokeh?.documents[0]?.is_idle && "
        "window.Bokeh.documents[0].get_model_by_name('weft_lanes')?.text.includes('lent')",
    )
]


@contextmanager
def served(folder: Path) -> Generator[str]:
    """Serve a folder on this host; give its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextmanager
def site() -> Generator[str]:
    """Serve the site that ``nox -s docs`` has built."""
    folder = ROOT / "build/docs"
    if not (folder / "index.html").exists():
        raise SystemExit("no site in build/docs; run: uv run nox -s docs")
    with served(folder) as address:
        yield address


@contextmanager
def demo() -> Generator[str]:
    """Serve the page that ``weft demo --html`` writes, made from the record."""
    from weft.bench.charts.dask import page

    with tempfile.TemporaryDirectory() as folder:
        record = json.loads((ROOT / "docs/benchmarks/demo.json").read_text())
        (Path(folder) / "demo.html").write_text(page(record))
        with served(Path(folder)) as address:
            yield address


@contextmanager
def dashboard() -> Generator[str]:
    """Start four workers, move data between them, and give the address of their dashboard."""
    import numpy as np
    from distributed import Client, LocalCluster, wait

    options = {"n_workers": 4, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    with LocalCluster(protocol="ucx", **options) as cluster, Client(cluster) as client:
        client.wait_for_workers(4)
        workers = sorted(client.nthreads())
        for i, here in enumerate(workers):
            for j, there in enumerate(workers):
                make = bytes if (i + j) % 2 else np.ones
                for nbytes in ((2 + i + j) << 20, *[(6 + i + j) << 16] * 3) if here != there else ():
                    made = client.submit(make, nbytes, workers=here, pure=False)  # the smaller ones are timed
                    wait(client.submit(len, made, workers=there, pure=False))
        yield f"http://127.0.0.1:{cluster.scheduler.http_server.port}"


async def take(shot: Shot, address: str, out: Path) -> str:
    """Take one screenshot; return what is wrong with it, or an empty string."""
    with tempfile.TemporaryDirectory() as profile:
        async with browser.opened("about:blank", Path(profile)) as tab:
            width, height = shot.size
            mobile = shot.size == PHONE
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
            await tab.call("Emulation.setDeviceMetricsOverride", **metrics)
            await tab.call("Emulation.setScrollbarsHidden", hidden=True)
            await tab.call("Page.navigate", url=f"{address}/{shot.page}")
            await tab.until(f"location.href !== 'about:blank' && {shot.ready}")
            await tab.until("new Promise(done => setTimeout(() => done(true), 500))")
            wide = await tab.evaluate("document.documentElement.scrollWidth")
            path = out / f"{shot.name}.png"
            await tab.screenshot(path)
    nbytes = compress(path)
    print(f"{path.name}: {nbytes >> 10} KiB")
    if wide > width:
        return f"{shot.name}: the page is {wide} px wide, its window {width}"
    return f"{shot.name}: {nbytes} B are more than {LIMIT_NBYTES}" if nbytes > LIMIT_NBYTES else ""


def compress(path: Path) -> int:
    """Keep 256 colours of the picture; return the size of its file."""
    from PIL import Image

    with Image.open(path) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    return path.stat().st_size


def main(arguments: list[str] | None = None) -> int:
    """Take them, or those that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of screenshots (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/_static", metavar="FOLDER")
    args = parser.parse_args(arguments)
    if browser.find() is None:
        raise SystemExit("no chromium here; run: apt-get install chromium")
    args.out.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    sources: list[tuple[Callable[[], Any], list[Shot]]] = [(site, SITE), (demo, DEMO), (dashboard, DASHBOARD)]
    for source, shots in sources:
        if wanted := [shot for shot in shots if not args.names or shot.name in args.names]:
            with source() as address:
                wrong += filter(None, [asyncio.run(take(shot, address, args.out)) for shot in wanted])
    print(*wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
