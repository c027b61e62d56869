#!/usr/bin/env python3
"""Converts evidence of earlier builds to a folder of runs, one JSON-lines file each (schema 3, docs/evidence.md).

    python3 scripts/convert_evidence.py ~/.local/share/flashcore/evidence/HOST.sqlite [FOLDER]
    python3 scripts/convert_evidence.py export-of-schema-2.jsonl FOLDER

Reads the SQLite stores of schema 1 and 2, and exports of them. Without FOLDER, HOST.sqlite becomes
the folder HOST, where `flashcore evidence` looks. Runs that the folder already has are not changed,
nor is the old file. A store that was converted to the default folder is renamed to
HOST.sqlite.converted, so that no command mentions it again. Needs only Python's standard library.
"""

import argparse
import json
import os
import pathlib
import sqlite3
import sys

FORMAT, SCHEMA = "flashcore-evidence", 3
APPLICATION_ID = 0x464C4345  # "FLCE" in the header of an SQLite file


def runs_of_store(path):
    """Each run of an SQLite store as (key, lines)."""
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    database.row_factory = sqlite3.Row
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID or version not in (1, 2):
        sys.exit(f"{path} is no evidence store of schema 1 or 2")
    for run in database.execute("SELECT * FROM runs ORDER BY run_id"):
        device = {
            "device": run["device"],
            "name": run["device_name"],
            "uuid": run["device_uuid"],
            "driver": run["driver"],
            "architecture": run["architecture"],
            "units": run["units"],
            "l2_bytes": run["l2_bytes"],
        }
        identity = {
            "device": device,
            **{name: run[name] for name in ("revision", "version", "protocol", "host", "started_at")},
        }
        lines = [header(run["run_key"], identity, json.loads(run["options"]), run["floor_us"])]
        measurements = database.execute(
            "SELECT * FROM measurements WHERE run_id = ? ORDER BY measurement_id", (run["run_id"],)
        ).fetchall()
        for measurement in measurements:
            lines += lines_of(database, measurement, version)
        lines += closing(lines, len(measurements))
        yield run["run_key"], lines


def lines_of(database, measurement, version):
    """The lines of a measurement of an SQLite store."""
    key = (measurement["measurement_id"],)
    subjects = database.execute("SELECT * FROM subjects WHERE measurement_id = ? ORDER BY position", key).fetchall()
    case = {"name": measurement["case_name"], "problem": json.loads(measurement["problem_json"])}
    entered = [
        {"info": json.loads(subject["info"]), "inspection": json.loads(subject["inspection"] or "null")}
        for subject in subjects
    ]
    begun = {"case": case, "mode": measurement["mode"], "baseline": measurement["baseline"], "subjects": entered}
    lines = [{"measurement": begun}]
    samples = database.execute(
        "SELECT samples.*, subjects.position AS subject FROM samples JOIN subjects USING (subject_id) "
        "WHERE measurement_id = ? ORDER BY sample_id",
        key,
    )
    names = ("subject", "round", "position", "runs", "total_us", "at_us")
    lines += [{"sample": {name: sample[name] for name in names}} for sample in samples]
    names = ("sm_mhz", "memory_mhz", "power_w", "power_limit_w", "temperature_c")
    for reading in database.execute("SELECT * FROM readings WHERE measurement_id = ? ORDER BY reading_id", key):
        state = {**{name: reading[name] for name in names}, "throttle": reading["throttle"].split()}
        lines.append({"reading": {"round": reading["round"], "state": state}})
    if measurement["stop"] is not None:
        # Before schema 2 all turns of the hot mode were short.
        turns = measurement["turns"] if version > 1 else ("short" if measurement["mode"] == "hot" else None)
        left = [{"settled": bool(subject["settled"]), "trouble": subject["trouble"]} for subject in subjects]
        end = {"stop": measurement["stop"], "rounds": measurement["rounds"], "turns": turns, "subjects": left}
        lines.append({"end": end})
    return lines


def runs_of_export(path):
    """Each run of an export of schema 1 or 2 as (key, lines)."""
    runs = []
    with open(path, encoding="utf-8") as file:
        old = [json.loads(line) for line in file if line.strip()]
    if not old or old[0].get("header", {}).get("format") != FORMAT or old[0]["header"].get("schema") not in (1, 2):
        sys.exit(f"{path} is no export of schema 1 or 2")
    version = old[0]["header"]["schema"]
    for line in old[1:]:
        if "run" in line:
            run = line["run"]
            runs.append((run["key"], [header(run["key"], run["identity"], run["options"], run["floor_us"])], 0))
        else:
            key, lines, measurements = runs.pop()
            runs.append((key, lines + lines_of_recorded(line["measurement"], version), measurements + 1))
    for key, lines, measurements in runs:
        # An export of these schemas did not say which measurements were cut off: it called them "budget".
        yield key, lines + closing(lines, measurements)


def lines_of_recorded(recorded, version):
    """The lines of a measurement of an export."""
    measurement = recorded["measurement"]
    subjects = measurement["subjects"]
    entered = [
        {"info": subject["info"], "inspection": inspection}
        for subject, inspection in zip(subjects, recorded["inspections"])
    ]
    begun = {
        "case": recorded["case"],
        "mode": measurement["mode"],
        "baseline": measurement["baseline"],
        "subjects": entered,
    }
    lines = [{"measurement": begun}]
    lines += [{"sample": sample} for sample in recorded["samples"]]
    lines += [{"reading": {"round": number, "state": state}} for number, state in recorded["rounds"]]
    turns = measurement.get("turns")
    if version == 1 and measurement["mode"] == "hot":
        turns = "short"
    left = [{"settled": subject["settled"], "trouble": subject["trouble"]} for subject in subjects]
    end = {"stop": measurement["stop"], "rounds": measurement["rounds"], "turns": turns, "subjects": left}
    return lines + [{"end": end}]


def header(key, identity, options, floor_us):
    # The order of the keys matters to no reader; the line has to begin with `{"run":`.
    run = {"format": FORMAT, "schema": SCHEMA, "key": key, "identity": identity, "options": options}
    return {"run": {**run, "floor_us": floor_us}}


def closing(lines, measurements):
    """The closing line; none where a measurement did not end: the run was cut off."""
    ended = sum("end" in line for line in lines)
    return [{"finished": {"measurements": measurements}}] if ended == measurements else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__.split("\n\n", 1)[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path, metavar="OLD", help="HOST.sqlite, or an export (.jsonl)")
    parser.add_argument("folder", type=pathlib.Path, nargs="?", help="where runs go; default: OLD without .sqlite")
    args = parser.parse_args()
    with open(args.old, "rb") as file:
        is_store = file.read(16) == b"SQLite format 3\0"
    default = args.old.with_name(args.old.name.removesuffix(".sqlite"))
    if args.folder is None and default == args.old:
        parser.error("name the folder: OLD does not end in .sqlite")
    folder = args.folder or default
    folder.mkdir(parents=True, exist_ok=True)
    added = known = 0
    for key, lines in runs_of_store(args.old) if is_store else runs_of_export(args.old):
        path = folder / f"{key}.jsonl"
        if path.exists():
            known += 1
            continue
        unfinished = path.with_suffix(".part")
        with open(unfinished, "w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
        os.replace(unfinished, path)
        added += 1
    print(f"{added} runs added to {folder}; {known} were there already")
    if args.folder is None:
        for part in ("", "-wal", "-shm"):  # what SQLite has not yet written into the file goes with it
            if os.path.exists(f"{args.old}{part}"):
                os.replace(f"{args.old}{part}", f"{args.old}.converted{part}")
        print(f"{args.old} is now {args.old}.converted")


if __name__ == "__main__":
    main()
