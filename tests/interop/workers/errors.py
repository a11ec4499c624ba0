"""Leaves an error file, of another kind for every rank, and fails.

    errors.py DIRECTORY

The last rank fails once all others are ready; they fail when they are stopped for it, each with a code of its own, higher
ranks first.
"""

import os
import pathlib
import signal
import sys
import time

FILES = [
    '{"message": {"message": "ValueError: late", "extraInfo": {"py_callstack": "Traceback:\\n  line\\nValueError: late\\n", '
    '"timestamp": "1900000000"}}}',
    '{"message": "a text\\nof two lines", "timestamp": 1800000000}',
    '{"message": {"message": "only a message", "extraInfo": {"timestamp": 1700000000}}}',
    '{"message": {"message": "' + 80 * "long " + '", "extraInfo": {"timestamp": "1800000001"}, "errorCode": 7}, '
    '"more": [1]}',
    '{"message": {"message": "caf\\u00e9 \\u2603", "extraInfo": {"py_callstack": "caf\u00e9 \u2603\\n", "timestamp": '
    '"1800000002"}}}',
    '{"message": {"extraInfo": {"timestamp": "1800000003"}}}',
    None,
]


def main():
    directory, rank, world = pathlib.Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    content = FILES[rank] if rank < len(FILES) else None
    if content is not None:
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w", encoding="utf-8") as file:
            file.write(content)

    def stop(*_):
        time.sleep(0.2 * (world - rank))
        os._exit(10 + rank)
    signal.signal(signal.SIGTERM, stop)
    (directory / f"ready.{rank}").touch()
    while rank < world - 1 or len(list(directory.glob("ready.*"))) < world:
        time.sleep(0.02)
    sys.exit(3)


if __name__ == "__main__":
    main()
