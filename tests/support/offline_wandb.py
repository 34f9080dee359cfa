"""Reads what an offline W&B run wrote: a log of framed records, each one of W&B's own messages.

W&B's releases from 0.20 on read these files in a compiled program only, so the frames (those of LevelDB's log: blocks of 32 kB,
records of a 7-byte header and data, in whole or in parts) are taken apart here, and the messages by W&B's own classes.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = range(1, 5)


def messages(data: bytes) -> Iterator[bytes]:
    assert data[:4] == b":W&B"
    place, parts = HEADER, []
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:  # too little room for a header: the rest of the block is empty
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts.append(data[place + HEADER : place + HEADER + length])
        place += HEADER + length
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts = []
        else:
            assert kind in (FIRST, MIDDLE), kind


def read_run(folder: Path) -> tuple[list[dict[str, Any]], Path]:
    """The rows of a run's history, and where its files are."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    rows = []
    for record in _finished(path):
        if record.WhichOneof("record_type") == "history":
            rows.append({})
            for item in record.history.item:
                *outer, key = item.nested_key or [item.key]
                place = rows[-1]
                for name in outer:
                    place = place.setdefault(name, {})
                place[key] = json.loads(item.value_json)
    return rows, path.parent / "files"


def _finished(path: Path, patience: float = 60.0) -> list[Any]:
    """The records of a run that is over: W&B's service writes the last of them a while after ``finish`` returns."""
    from wandb.proto.wandb_internal_pb2 import Record

    end = time.monotonic() + patience
    while True:
        records = [Record.FromString(message) for message in messages(path.read_bytes())]
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        assert time.monotonic() < end, "the run's file never ended"
        time.sleep(0.05)
