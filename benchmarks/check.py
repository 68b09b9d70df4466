#!/usr/bin/env python3
"""benchmarks/check.py [FOLDER...]: checks results of benchmarks/results, by default all.
benchmarks/check.py --numbers FILE.json: checks the numbers of a result of `switchyard scale` alone.

Prints a line for each problem, and exits with 1 if there is one. benchmarks/README.md has the rules.
All figures are computed again from the step times of the repeats, without the program's code.
"""
import csv
import json
import math
import pathlib
import re
import sys

LEAST_REPEATS = 5
FILES = ("README.md", "config.ini", "result.json", "result.csv")
NAME = re.compile(r"[a-z0-9.-]+_[a-z0-9.-]+_(\d{4}-\d{2}-\d{2})")
# Members of a provenance record that must be known.
RECORD = ("program_version", "commit", "build_type", "compiler", "flags", "kernel_flags", "mpi", "ranks", "hosts",
          "processors", "instruction_set", "date", "command", "environment", "config_sha256", "data_digest")


def median(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def interval(values, confidence=0.95):
    """Returns low, high and coverage of the interval of the median; None for fewer than two values."""
    values, n = sorted(values), len(values)
    if n < 2:
        return None

    def coverage(j):  # of [x_(j), x_(n+1-j)]: the number of values below the median is binomial
        return sum(math.comb(n, i) for i in range(j, n - j + 1)) / 2**n

    j = max([1] + [j for j in range(1, n // 2 + 1) if coverage(j) >= confidence])
    return {"low": values[j - 1], "high": values[n - j], "coverage": coverage(j)}


def derived(result, point):
    """Returns the figures of a point that follow from its repeats."""
    seconds = median(point["repeats"])
    speed = point["tokens_per_step"] / seconds
    nodes = point["nodes"]
    tflops = result["flops_per_token"] * speed / 1e12
    figures = {
        "tokens_per_step": point["global_batch"] * result["configuration"]["model"]["seq_len"],
        "step_seconds": seconds,
        "interval": interval(point["repeats"]),
        "spread": (max(point["repeats"]) - min(point["repeats"])) / seconds if len(point["repeats"]) > 1 else None,
        "tokens_per_second": speed,
        "tokens_per_second_per_rank": speed / point["ranks"],
        "tokens_per_second_per_node": speed / nodes if nodes else None,
        "tflops_per_second": tflops,
        "tflops_per_second_per_rank": tflops / point["ranks"],
    }
    peak = result["peak"]
    if point["mfu_problem"] is not None:
        figures["mfu"] = None
    elif peak is not None:
        figures["mfu"] = tflops * 1e12 / (peak["flops"] * (nodes if peak["of"] == "node" else point["ranks"]))
    parts = [point["cpu_joules_per_token"], point["gpu_joules_per_token"]]
    known = [x for x in parts if x is not None]
    figures["joules_per_token"] = sum(known) if known else None
    return figures


def compared(result):
    """Returns for each point its speed-up, efficiency and routing gap, from the step times alone."""
    measured = [p for p in result["points"] if p["repeats"]]
    units = "nodes" if result["x"] == "nodes" else "ranks"
    speed = {id(p): p["tokens_per_step"] / median(p["repeats"]) for p in measured}
    own = [p for p in measured if not p["balanced"] and p[units]]

    def fastest(points):  # on the fewest ranks or nodes
        return max(points, key=lambda p: (-p[units], speed[id(p)]), default=None)

    base_of_both = fastest([p for p in own if p["strong"] and p["weak"]])
    layout = ("ranks", "tp", "ep", "etp", "node", "global_batch")
    for p in measured:
        figures = {"speedup": None, "efficiency": None, "routing_gap": None}
        kind = "strong" if p["strong"] else "weak"
        base = base_of_both or fastest([q for q in own if q[kind]])
        if base:
            figures["speedup"] = speed[id(p)] / speed[id(base)]
            figures["efficiency"] = figures["speedup"] * base[units] / p[units] if p[units] else None
        for other in measured:
            if other["balanced"] and not p["balanced"] and all(other[k] == p[k] for k in layout):
                figures["routing_gap"] = speed[id(other)] / speed[id(p)] - 1
        yield p, figures


def same(a, b, tolerance=1e-9):
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k], tolerance) for k in a)
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) <= tolerance * max(abs(a), abs(b), 1e-12)
    return a == b


def name_of(point):
    return "{ranks} ranks, tp {tp} ep {ep} etp {etp} node {node}, batch {global_batch}, {routing}".format(
        routing="balanced" if point["balanced"] else "own routing", **point)


def check_numbers(result, problem):
    for point, figures in compared(result):
        figures.update(derived(result, point))
        for name, want in figures.items():
            if not same(point[name], want):
                problem(f"{name_of(point)}: {name} is {point[name]}, and its repeats give {want}")


def check_csv(result, text, problem):
    rows = list(csv.DictReader(text.splitlines()))
    if len(rows) != len(result["points"]):
        problem(f"result.csv has {len(rows)} rows for {len(result['points'])} points")
        return
    for row, point in zip(rows, result["points"]):
        interval_of = point["interval"] or {"low": None, "high": None, "coverage": None}
        others = {"balanced": int(point["balanced"]), "strong": int(point["strong"]), "weak": int(point["weak"]),
                  "repeats": len(point["repeats"]), "interval_low_seconds": interval_of["low"],
                  "interval_high_seconds": interval_of["high"], "interval_coverage": interval_of["coverage"]}
        for column, value in row.items():
            if column in ("version", "commit", "hardware", "config_sha256", "provenance"):
                continue
            want = others.get(column, point.get(column))
            if not same(float(value) if value else None, want, 1e-5):
                problem(f"{name_of(point)}: {column} is {value} in result.csv and {want} in result.json")


def check_record(record, problem):
    for member in RECORD:
        if record.get(member) in (None, "", [], {}) and member not in ("environment", "kernel_flags", "flags"):
            problem(f"provenance.{member} is missing: measure with a program of this version")
    if not re.fullmatch(r"[0-9a-f]{40}", str(record.get("commit"))):
        problem("provenance.commit is no git commit: build from a clone")
    if record.get("dirty") is not False:
        problem("provenance.dirty is not false: commit your changes, build, and measure again")
    if record.get("build_type") != "Release":
        problem("provenance.build_type is not Release")


def check_configuration(text, result, problem):
    """Every key of config.ini must have its value in the result."""
    section = ""
    for line in text.splitlines():
        line = re.split(r"(?:^|\s)[;#]", line)[0].strip()
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line:
            key, value = (part.strip() for part in line.split("=", 1))
            there = result["configuration"].get(section, {}).get(key)
            shown = str(there).lower() if isinstance(there, bool) else str(there)
            number = re.fullmatch(r"[-+0-9.eE]+", value) and isinstance(there, (int, float))
            if not (math.isclose(float(value), there) if number else shown == value.strip('"')):
                problem(f"config.ini has {section}.{key} = {value}, and result.json {shown}")


def check_folder(folder, problem):
    match = NAME.fullmatch(folder.name)
    if not match:
        problem("the folder's name is not MODEL_HARDWARE_YYYY-MM-DD in small letters")
    for name in FILES:
        if not (folder / name).is_file():
            problem(f"{name} is missing")
            return
    result = json.loads((folder / "result.json").read_text())
    if result.get("format") != "switchyard-scale" or result.get("version") != 1:
        problem("result.json is no document of `switchyard scale`, version 1")
        return
    record = result["provenance"] or {}
    check_record(record, problem)
    if match and not str(record.get("date")).startswith(match[1]):
        problem(f"the folder's date is not that of the measurement, {record.get('date')}")
    text = (folder / "README.md").read_text()
    for model in (record.get("processors") or []) + (record.get("gpus") or []):
        if re.sub(r"^\d+ x ", "", model) not in text:
            problem(f"README.md does not name the hardware of the record: {model}")
    check_configuration((folder / "config.ini").read_text(), result, problem)
    for point in result["points"]:
        if point["failure"] is not None or len(point["repeats"]) < LEAST_REPEATS:
            problem(f"{name_of(point)}: fewer than {LEAST_REPEATS} repeats, or a failure")
    check_numbers(result, problem)
    check_csv(result, (folder / "result.csv").read_text(), problem)


def main(arguments):
    problems = []

    def checked(what, check, *inputs):
        def problem(text):
            problems.append(text)
            print(f"{what}: {text}")
        try:
            check(*inputs, problem)
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem(f"cannot be checked: {type(error).__name__}: {error}")

    if arguments[:1] == ["--numbers"] and len(arguments) == 2:
        checked(arguments[1], lambda problem: check_numbers(json.loads(pathlib.Path(arguments[1]).read_text()), problem))
        return 1 if problems else 0
    if any(a.startswith("-") for a in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    folders = [pathlib.Path(a) for a in arguments]
    if not folders:
        folders = sorted(f for f in (pathlib.Path(__file__).parent / "results").iterdir() if f.is_dir())
    for folder in folders:
        checked(folder.name, check_folder, folder.resolve())
    print(f"{len(folders)} results, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
