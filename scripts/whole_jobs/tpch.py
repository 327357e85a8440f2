# SPDX-License-Identifier: BSD-3-Clause
"""TPC-H's tables as Coiled's queries read them: Parquet files with floats for decimals and timestamps for dates.

The rows are those of TPC-H's own generator, made by tpchgen-cli, a copy of it in Rust that PyPI has.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from weft.bench.common.errors import BenchError

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
#: Of one file, as with Coiled's data; each becomes a partition.
FILE_NBYTES = 128 << 20
_TIMEOUT_S = 3600.0


def generated(folder: Path, scale: float) -> Path:
    """Return the folder with a folder for each table, made in `folder` if it is not there.

    Raises
    ------
    BenchError
        tpchgen-cli is not installed, or failed.
    """
    done = folder / f"scale-{scale:g}"
    if all((done / table).is_dir() for table in TABLES):
        return done
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        made, written = Path(name) / "made", Path(name) / "written"
        made.mkdir()
        command = [_program(), "parquet", "-q", f"--scale-factor={scale:g}", f"--output-dir={made}"]
        if (ended := subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)).returncode:
            raise BenchError(f"tpchgen-cli made no tables: {ended.stderr.strip()[-500:]}")
        for table in TABLES:
            rewrite(made / f"{table}.parquet", written / table)
        shutil.rmtree(done, ignore_errors=True)
        written.rename(done)
    return done


def _program() -> str:
    """Find tpchgen-cli beside this Python or on the path."""
    beside = shutil.which("tpchgen-cli", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("tpchgen-cli")
    if found is None:
        raise BenchError("TPC-H's tables need tpchgen-cli: pip install tpchgen-cli (or leave its rows out with --rows)")
    return found


def rewrite(source: Path, folder: Path) -> None:
    """Write a table into files of about `FILE_NBYTES` in `folder`, with the types that Coiled's data has."""
    folder.mkdir(parents=True)
    with pq.ParquetFile(source) as file:
        schema = pa.schema([(field.name, _type(field.type)) for field in file.schema_arrow])
        rows = file.metadata.num_rows
        most = max(1, rows * FILE_NBYTES // source.stat().st_size)
        writer, written = None, most
        for batch in file.iter_batches(batch_size=min(most, 1 << 18)):
            if written >= most:
                if writer is not None:
                    writer.close()
                number = len(list(folder.iterdir()))
                writer, written = pq.ParquetWriter(folder / f"{folder.name}.{number:04}.parquet", schema), 0
            assert writer is not None
            writer.write_batch(batch.cast(schema))
            written += batch.num_rows
        if writer is not None:
            writer.close()


def _type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_date(kind):
        return pa.timestamp("s")
    return pa.string() if pa.types.is_string_view(kind) else kind
