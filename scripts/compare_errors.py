#!/usr/bin/env python3
"""Errors of kernels and peers against float64, from a report of `flashcore bench`.

usage: flashcore bench PROBLEMS --json > REPORT.json; scripts/compare_errors.py REPORT.json...

Every subject of a report was inspected on the same standard normal inputs. For each the script prints
the Frobenius norm of the error over that of the output, its ratio to that of PyTorch's
FlashAttention-2 (the peer `torch/flash`), and the largest error.

Exit code: 1 where an error of a kernel of ours is above 3.5e-4 (fp16), 2.5e-3 (bf16), or 1.25 times
that of FlashAttention-2; 2 where a report has no inspection of a kernel of ours.
"""

import json
import sys

ALLOWED = {"fp16": 3.5e-4, "bf16": 2.5e-3}
ALLOWED_RATIO = 1.25


def errors(result):
    """Of each inspected subject of a result: whether it is ours, and its inspection, by label."""
    subjects = result["measurement"]["subjects"]
    found = zip(subjects, result["inspections"], strict=True)
    return {
        subject["info"]["label"]: (subject["info"]["kernel"] is not None, inspection)
        for subject, inspection in found
        if inspection is not None and inspection["rejected"] is None
    }


def main(paths):
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    judged = too_large = 0
    print(f"{'problem':<28} {'subject':<42} {'frobenius':>9} {'x FA2':>6} {'max abs':>9}")
    for path in paths:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)["report"]
        for result in report["results"]:
            if result["measurement"]["mode"] != report["results"][0]["measurement"]["mode"]:
                continue
            allowed = ALLOWED.get(result["case"]["problem"]["dtype"], float("inf"))
            by_label = errors(result)
            fa2 = by_label.get("torch/flash")
            for label, (is_ours, inspection) in by_label.items():
                error = inspection["frobenius"]
                ratio = error / fa2[1]["frobenius"] if fa2 else None
                right = error <= allowed and (ratio is None or ratio <= ALLOWED_RATIO)
                judged += is_ours
                too_large += is_ours and not right
                print(
                    f"{result['case']['name']:<28} {label:<42} {error:>9.3e} "
                    f"{'' if ratio is None else f'{ratio:.3f}':>6} {inspection['max_abs']:>9.3e}"
                    f"{' TOO LARGE' if is_ours and not right else ''}"
                )
    print(f"{too_large} of {judged} errors of ours are too large")
    return 2 if judged == 0 else int(too_large > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
