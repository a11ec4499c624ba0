"""What scripts/sim-mutants-engine, -etcd, -fold and -handler share: a machine's sources are changed on purpose, one
mutant at a time, and the machine's simulator runs seeds on each until something breaks. What no simulated job suffers
from is left to the machine's unit test."""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS_MAX = 600
CC = os.environ.get("CC", "cc")
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-w",
         *(f"-I{ROOT / folder}" for folder in ("src", "include", "tests/sim", "tests/unit", "tests/lib"))]
BY_UNIT_TEST = "by unit test"
FAILMALLOC = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "strdup", "strndup")]


def compile_to(target, source):
    subprocess.run([CC, *FLAGS, "-c", str(source), "-o", str(target)], check=True)
    return target


class Hunt:
    """`machine`: the sources that mutants change; `others`: the simulator's; the rest of src/rdzv is linked to them.
    A mutant is (name, (what is replaced, by what), ..., options): each text must be in the machine's sources exactly
    once; options are the simulator's, or BY_UNIT_TEST: then `unit_test` has to fail, and not the simulator."""

    def __init__(self, machine, others, mutants, seeds, unit_test=()):
        self.name = pathlib.Path(sys.argv[0]).name
        self.machine = [ROOT / path for path in machine]
        parts = ("arena", "base64", "buf", "error", "hash", "number", "rng", "words")
        base = [ROOT / f"src/base/{name}.c" for name in parts]
        pure = base + sorted((ROOT / "src/rdzv").glob("*.c"))
        self.simulator = [ROOT / path for path in others]
        self.unit_test = [ROOT / path for path in unit_test]
        self.others = [path for path in pure if path not in self.machine]
        self.mutants = mutants
        self.seeds = seeds

    def change(self, mutant):
        """The sources that it changes, and their text then."""
        texts = {path: path.read_text() for path in self.machine}
        changed = set()
        for old, new in (part for part in mutant[1:] if isinstance(part, tuple)):
            found = [path for path, text in texts.items() if old in text]
            if len(found) != 1 or texts[found[0]].count(old) != 1:
                raise SystemExit(f"{self.name}: not exactly once in {found or 'the sources'}:\n{old}")
            texts[found[0]] = texts[found[0]].replace(old, new)
            changed.add(found[0])
        return {path: texts[path] for path in changed}

    def build(self, work, objects, mutant):
        texts = self.change(mutant)
        folder = pathlib.Path(tempfile.mkdtemp(dir=work))
        own = []
        for path, text in texts.items():
            (folder / path.name).write_text(text)
            own.append(compile_to(folder / f"{path.stem}.o", folder / path.name))
        by_unit_test = BY_UNIT_TEST in mutant
        left_out = [*texts, *(self.simulator if by_unit_test else self.unit_test)]
        rest = [target for path, target in objects.items() if path not in left_out]
        self.link(folder / "sim", own + rest, [*FAILMALLOC, "-lcmocka"] if by_unit_test else [])
        return folder / "sim"

    def link(self, program, objects, options):
        subprocess.run([CC, "-o", str(program), *map(str, objects), *options, "-ljansson"], check=True)

    def test(self, program):
        """0 seeds, and which test failed; None when none did."""
        run = subprocess.run([str(program)], capture_output=True, text=True, errors="replace", timeout=SECONDS_MAX)
        failed = re.findall(r"^\[  FAILED  \] (\w+)$", run.stdout + run.stderr, re.MULTILINE)
        return (0 if run.returncode != 0 else None), failed[0] if failed else f"ended with {run.returncode}"

    def hunt(self, program, mutant):
        """How many seeds it took, and what broke; None when nothing did."""
        if BY_UNIT_TEST in mutant:
            return self.test(program)
        options = [part for part in mutant[1:] if isinstance(part, str)]
        try:
            run = subprocess.run([str(program), "--seeds", str(self.seeds), *options], capture_output=True, text=True,
                                 errors="replace", timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return None, "it took too long"
        if run.returncode == 0:
            return None, run.stdout.strip()
        said = run.stdout + run.stderr
        seed = re.search(r"^(?:seed |replay with: .* --seed )(\d\w*)", said, re.MULTILINE)
        broken = re.findall(r"^(?:[\d.]+ ms: |seed \d+, )(.*)", said, re.MULTILINE)
        last = (said.strip().splitlines() or [f"ended with {run.returncode}"])[-1]
        return (int(seed.group(1), 0) + 1 if seed else 0), broken[-1] if broken else last

    def main(self):
        arguments = sys.argv[1:]
        for mutant in self.mutants:
            self.change(mutant)
        if arguments == ["--check"]:
            return 0
        chosen = [mutant for mutant in self.mutants if not arguments or arguments[0] in mutant[0]]
        start, survivors = time.monotonic(), 0
        with tempfile.TemporaryDirectory(prefix="muster-mutants-") as folder:
            work = pathlib.Path(folder)
            sources = self.machine + self.others + self.simulator + self.unit_test
            objects = {path: compile_to(work / f"{path.stem}.o", path) for path in sources}
            for none in (("none",), ("none", BY_UNIT_TEST))[:2 if self.unit_test else 1]:
                if self.hunt(self.build(work, objects, none), none)[0] is not None:
                    raise SystemExit(f"{self.name}: it fails without any mutation")
            with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
                results = pool.map(lambda mutant: self.hunt(self.build(work, objects, mutant), mutant), chosen)
                for mutant, (count, what) in zip(chosen, results):
                    survivors += count is None
                    found = "SURVIVES" if count is None else f"{count:5} seeds"
                    print(f"{found:>12}  {mutant[0]}: {what}", flush=True)
        print(f"{self.name}: {len(chosen) - survivors} of {len(chosen)} found in {time.monotonic() - start:.0f} s")
        return 1 if survivors else 0
