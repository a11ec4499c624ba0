"""Takes its local rank as an argument, as scripts for torch.distributed.launch do, and says what it got.

    older.py [--local-rank N] DIRECTORY [WORD ...]
"""

import argparse
import json
import os
import pathlib
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", type=int)
parser.add_argument("directory", type=pathlib.Path)
parser.add_argument("words", nargs=argparse.REMAINDER)
asked = parser.parse_args()
told = {"name": __name__, "script": os.path.basename(sys.argv[0]), "count": len(sys.argv), "argument": asked.local_rank,
        "variable": os.environ["LOCAL_RANK"], "words": asked.words}
(asked.directory / os.environ["RANK"]).write_text(json.dumps(told))
