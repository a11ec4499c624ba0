"""What scripts/sim-mutants-engine, -etcd, -fold and -handler share: a machine's sources are changed on purpose, one
mutant at a time, and the machine's simulator runs seeds on each until something breaks. What no simulated job suffers
from is left to the machine's unit tests."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS_MAX = 600
CC = os.environ.get("CC", "cc")
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-w",
         *(f"-I{ROOT / folder}" for folder in ("src", "include", "tests/sim", "tests/unit", "tests/lib"))]
BY_UNIT_TEST = "by unit test"
UNIT_SECONDS_MAX = 60  # for one unit test; the slowest takes 2 s
CORE = ROOT / "build/libmuster_core.a"
LIBRARIES = ["-luv", "-ljansson", "-pthread", "-ldl"]
FAILMALLOC = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "strdup", "strndup")]


def compile_to(target, source):
    subprocess.run([CC, *FLAGS, "-c", str(source), "-o", str(target)], check=True)
    return target


def link(program, objects, *options):
    """What is not among the objects comes from the release build."""
    subprocess.run([CC, "-o", str(program), *map(str, objects), str(CORE), *options, *LIBRARIES], check=True)


class Hunt:
    """`machine`: the sources that mutants change; all others come from the release build. `simulator` and `unit_tests`:
    names in tests/sim and tests/unit. A mutant is (name, (what is replaced, by what), ..., options): each text must be
    in the machine's sources exactly once; options are the simulator's, or BY_UNIT_TEST: then one of `unit_tests` has to
    fail, and not the simulator."""

    def __init__(self, machine, simulator, mutants, seeds, unit_tests=()):
        self.name = pathlib.Path(sys.argv[0]).name
        self.machine = [ROOT / path for path in machine]
        self.simulator = [ROOT / f"tests/sim/{name}.c" for name in simulator]
        self.unit_tests = [ROOT / f"tests/unit/{name}.c" for name in unit_tests]
        self.test_library = [ROOT / f"tests/lib/{name}.c" for name in ("failmalloc", "wire")] if unit_tests else []
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
        if BY_UNIT_TEST not in mutant:
            link(folder / "sim", own + [objects[path] for path in self.simulator])
        for path in self.unit_tests if BY_UNIT_TEST in mutant else []:
            test = [objects[each] for each in [path, *self.test_library]]
            link(folder / path.stem, own + test, *FAILMALLOC, "-lcmocka")
        return folder / "sim"

    def test(self, program):
        """0 seeds, and which test failed; None when none did."""
        for unit in (path.stem for path in self.unit_tests):
            try:
                run = subprocess.run([str(program.with_name(unit))], capture_output=True, text=True, errors="replace",
                                     cwd=ROOT, timeout=UNIT_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                return 0, f"{unit} does not end"
            if run.returncode != 0:
                said = run.stdout + run.stderr
                failed = re.findall(r"^\[  FAILED  \] (\w+)$", said, re.MULTILINE)
                return 0, f"{unit}: {failed[0] if failed else f'ended with {run.returncode}'}"
        return None, "no unit test fails"

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
        first = int(options[options.index("--seed") + 1], 0) if "--seed" in options else 0
        return (int(seed.group(1), 0) - first + 1 if seed else 0), broken[-1] if broken else last

    def main(self):
        arguments = sys.argv[1:]
        for mutant in self.mutants:
            self.change(mutant)
        if arguments == ["--check"]:
            return 0
        chosen = [mutant for mutant in self.mutants if not arguments or arguments[0] in mutant[0]]
        if not chosen:
            return 0
        start, survivors = time.monotonic(), 0
        with tempfile.TemporaryDirectory(prefix="muster-mutants-") as folder, ThreadPoolExecutor(max_workers=2) as pool:
            work = pathlib.Path(folder)
            subprocess.run([ROOT / "scripts/build", "build", CORE.name], check=True)
            sources = self.simulator + self.unit_tests + self.test_library
            objects = dict(zip(sources, pool.map(lambda path: compile_to(work / f"{path.stem}.o", path), sources)))
            for none in ("none",), ("none", BY_UNIT_TEST):
                wanted = any((BY_UNIT_TEST in mutant) == (BY_UNIT_TEST in none) for mutant in chosen)
                if wanted and self.hunt(self.build(work, objects, none), none)[0] is not None:
                    raise SystemExit(f"{self.name}: it fails without any mutation")
            results = pool.map(lambda mutant: self.hunt(self.build(work, objects, mutant), mutant), chosen)
            for mutant, (count, what) in zip(chosen, results):
                survivors += count is None
                found = "SURVIVES" if count is None else f"{count:5} seeds"
                print(f"{found:>12}  {mutant[0]}: {what}", flush=True)
        print(f"{self.name}: {len(chosen) - survivors} of {len(chosen)} found in {time.monotonic() - start:.0f} s")
        return 1 if survivors else 0
