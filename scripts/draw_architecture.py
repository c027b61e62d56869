#!/usr/bin/env python3
"""Draws docs/architecture.svg: the workspace's crates, what each imports, and how data flows through them.

usage: draw_architecture.py            writes docs/architecture.svg
       draw_architecture.py --check    exits with 1 if that file is not what would be written

Crates, folders and imports come from `cargo metadata`. An import that follows from others (A imports B, B imports C,
so A may use C) is left out. Fails if the library imports the lab, or if a type of the data flow is not defined in the
crate that the drawing names.
"""

import html
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "architecture.svg"

# One line or two on each crate. A crate that is missing here is an error, so that the drawing is kept up to date.
WORDS = {
    "problem": ["shapes, dtypes, masks,", "the float64 reference"],
    "ir": ["kernel language, launch", "proof, PTX writer"],
    "cpu": ["attention on the host,", "SIMD and threads"],
    "kernels": ["families: levers,", "refusals, main loops"],
    "cuda": ["the driver: modules,", "memory, launches"],
    "flashcore": ["what users add:", "Attention, Device"],
    "ptx": ["reads PTX of", "any compiler"],
    "sim": ["runs a kernel on the", "CPU and judges it"],
    "check": ["findings, cost model,", "museum of failures"],
    "bench": ["protocol, statistics,", "peers, evidence"],
    "tune": ["the search: gates,", "workers, strategies"],
    "cli": ["the flashcore command"],
    "tools": ["fuzzer, self-tests on a", "GPU, scripts' programs"],
}
# The data flow: what is handed on, the crate that defines it, a word on it. A name in `code` must be a type of the crate.
FLOW = [
    ("Problem", "problem", "what is computed"),
    ("Config", "kernels", "one choice of levers"),
    ("Plan", "kernels", "kernels and launches"),
    ("Module", "cuda", "PTX, compiled"),
    ("Tensor", "problem", "the output"),
]

# Who imports the library from outside of the workspace.
USERS = [("your program", "Rust: flashcore = { path = … }"), ("bindings/python", "PyTorch, JAX, CuPy, NumPy")]

W, CARD_W, CARD_H, COLUMN, ROW = 1360, 166, 72, 222, 90
LEFT, INSET = 20, 24


def crates():
    """Name to (folder, names of the workspace's crates that it imports)."""
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"]
    packages = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)["packages"]
    short = {p["name"]: pathlib.Path(p["manifest_path"]).parent.name for p in packages}
    found = {}
    for package in packages:
        group = pathlib.Path(package["manifest_path"]).parent.relative_to(ROOT).parts[0]
        imports = {short[d["name"]] for d in package["dependencies"] if d["kind"] is None and d["name"] in short}
        found[short[package["name"]]] = (group, imports)
    return found


def reach(found, name):
    """All that a crate imports, directly or through others."""
    seen, todo = set(), list(found[name][1])
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += found[at][1]
    return seen


def direct(found):
    """The imports that do not follow from others, as (importer, imported)."""
    edges = []
    for name, (_, imports) in sorted(found.items()):
        through = set().union(*(reach(found, i) for i in imports)) if imports else set()
        edges += [(name, imported) for imported in sorted(imports - through)]
    return edges


def proofs(found):
    for name, (group, _) in found.items():
        lab = {i for i in reach(found, name) if found[i][0] == "lab"}
        if group == "crates" and lab:
            sys.exit(f"crates/{name} imports the lab: {', '.join(sorted(lab))}")
        if name not in WORDS:
            sys.exit(f"{group}/{name} has no words in {pathlib.Path(__file__).name}")
    for kind, crate, _ in FLOW:
        sources = (ROOT / found[crate][0] / crate / "src").rglob("*.rs")
        # A family's config is made by the macro of its levers.
        declared = re.compile(rf"^pub (struct|enum) {kind}\b|^levers! {{\n    ///[^\n]*\n    {kind}:", re.M)
        if not any(declared.search(source.read_text(encoding="utf-8")) for source in sources):
            sys.exit(f"{found[crate][0]}/{crate} defines no public `{kind}`")


def place(found):
    """Each crate's card: column by the longest chain of imports, rows in an order that keeps lines apart."""
    depth = {}

    def of(name):
        if name not in depth:
            depth[name] = 1 + max((of(i) for i in found[name][1]), default=-1)
        return depth[name]

    spots = {}
    for group, top in (("crates", 96), ("lab", 448)):
        columns = {}
        for name in sorted((n for n in found if found[n][0] == group), key=lambda n: (of(n), list(WORDS).index(n))):
            columns.setdefault(of(name), []).append(name)
        for column, names in columns.items():
            for row, name in enumerate(names):
                # A short column stands in the middle of the band.
                offset = (3 - len(names)) * ROW / 2 if group == "crates" else (2 - len(names)) * ROW / 2
                spots[name] = (LEFT + INSET + column * COLUMN, top + offset + row * ROW)
    return spots


class Drawing:
    def __init__(self):
        self.parts = []

    def text(self, x, y, words, kind="", anchor="start"):
        at = f' text-anchor="{anchor}"' if anchor != "start" else ""
        css = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{css}{at}>{html.escape(words)}</text>')

    def box(self, x, y, w, h, kind, radius=8):
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius}" class="{kind}"/>')

    def arrow(self, path, kind):
        self.parts.append(f'<path d="{path}" class="{kind}" marker-end="url(#{kind})"/>')


def draw(found):
    spots, out = place(found), Drawing()
    bands = {"crates": (40, 346), "lab": (400, 250)}
    for group, (top, height) in bands.items():
        mine = [spots[n][0] for n in found if found[n][0] == group]
        right = max(mine) + CARD_W + INSET
        out.box(LEFT, top, right - LEFT, height, f"band {group}", 14)
        title, words = {
            "crates": ("Library", "crates/ · what a program links"),
            "lab": ("Lab", "lab/ · what proves, measures and tunes it; the library never imports it"),
        }[group]
        # The lab's title stands at the right, where no arrow goes up to the library.
        x, anchor = (LEFT + INSET, "start") if group == "crates" else (right - INSET, "end")
        out.text(x, top + 32, title, "title", anchor)
        out.text(x + (90 if group == "crates" else -56), top + 32, words, "note", anchor)
    edges = direct(found)
    for edge in edges:
        importer, imported = edge
        (x1, y1), (x2, y2) = spots[importer], spots[imported]
        # Arrows that end or begin at one card lie one above the other; the users' come first at theirs.
        enter = sorted((e for e in edges if e[1] == imported), key=lambda e: spots[e[0]][1])
        users_above = len(USERS) if imported == "flashcore" else 0
        leave = sorted((e for e in edges if e[0] == importer), key=lambda e: spots[e[1]][1])
        a = (x1, y1 + spread(leave.index(edge), len(leave)))
        b = (x2 + CARD_W + 3, y2 + spread(enter.index(edge) + users_above, len(enter) + users_above))
        out.arrow(curve(a, b), found[importer][0])
    for name, (x, y) in spots.items():
        group = found[name][0]
        out.box(x, y, CARD_W, CARD_H, f"card {group}")
        out.text(x + 12, y + 24, name, "name")
        for line, words in enumerate(WORDS[name]):
            out.text(x + 12, y + 43 + 16 * line, words, "note")
    users(out, spots, found)
    flow(out, found, 688)
    return page("\n".join(out.parts))


def spread(index, count):
    """How far down a card the arrow of this index begins or ends."""
    return CARD_H / 2 + 15 * (index - (count - 1) / 2)


def curve(a, b):
    bend = max(14, min(70, (a[0] - b[0]) / 2))
    return f"M{a[0]:g} {a[1]:g}C{a[0] - bend:g} {a[1]:g} {b[0] + bend:g} {b[1]:g} {b[0]:g} {b[1]:g}"


def users(out, spots, found):
    """Who links the library: to the right of its band."""
    x, y = spots["flashcore"]
    left = x + CARD_W + INSET + 64
    entering = len(USERS) + sum(imported == "flashcore" for _, imported in direct(found))
    for row, (name, words) in enumerate(USERS):
        top = y - 46 + row * ROW
        out.box(left, top, 226, CARD_H - 12, "card user")
        out.text(left + 12, top + 25, name, "name")
        out.text(left + 12, top + 45, words, "note")
        out.arrow(curve((left, top + 30), (x + CARD_W + 3, y + spread(row, entering))), "user")
    out.text(left, y + 168, "A → B: A imports B. Imports that", "note")
    out.text(left, y + 185, "follow from others are left out.", "note")


def flow(out, found, top):
    """Problem to output, with what branches off, and the tuner's way back."""
    out.text(LEFT, top + 8, "Data flow", "title")
    out.text(LEFT + 116, top + 8, "the library, the simulator and the tuner use the same line", "note")
    y, w, h, gap = top + 46, 186, 74, 97
    verbs = ["select", "plan", "compile", "launch"]
    spot = {}
    for step, (kind, crate, words) in enumerate(FLOW):
        x = spot[kind] = LEFT + step * (w + gap)
        out.box(x, y, w, h, "card data")
        out.text(x + 12, y + 24, kind, "name")
        out.text(x + 12, y + 43, words, "note")
        out.text(x + 12, y + 61, f"{found[crate][0]}/{crate}", "where")
        if step:
            out.arrow(f"M{x - gap + 3:g} {y + h / 2:g}H{x - 5:g}", "data")
            out.text(x - gap / 2, y + h / 2 - 9, verbs[step - 1], "note", "middle")
    low = y + h + 44
    for kind, name, words in [
        ("Config", "Refusal", "why not, and what helps"),
        ("Plan", "sim, check", "findings, predicted time"),
        ("Tensor", "bench", "judged, timed: evidence"),
    ]:
        out.box(spot[kind], low, w, 52, "card side")
        out.text(spot[kind] + 12, low + 21, name, "name")
        out.text(spot[kind] + 12, low + 40, words, "note")
        out.arrow(f"M{spot[kind] + w / 2:g} {y + h:g}V{low - 5:g}", "data")
    # From the evidence back to the next config.
    start, left, under, enter = spot["Tensor"] + w / 2, spot["Config"] - 34, low + 82, y + h - 16
    out.arrow(f"M{start:g} {low + 52:g}V{under - 10:g}Q{start:g} {under:g} {start - 10:g} {under:g}H{left + 10:g}"
              f"Q{left:g} {under:g} {left:g} {under - 10:g}V{enter + 10:g}Q{left:g} {enter:g} {left + 10:g} {enter:g}"
              f"H{spot['Config'] - 5:g}", "data")
    out.text((left + start) / 2, under - 9, "tune: proposes the next config from what the trials said", "note", "middle")


def page(body):
    style = """
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif;fill:#1f2328}
.title{font-size:20px;font-weight:650}.name{font-size:15px;font-weight:650}.note{fill:#59636e;font-size:12px}.where{fill:#4d7f4a;font-size:12px}
.band{stroke-width:1.5}.band.crates{fill:#eef5ff;stroke:#b6d4fb}.band.lab{fill:#fff6e8;stroke:#f1d3a0}
.card{fill:#fff;stroke-width:1.4}.card.crates{stroke:#3f83d6}.card.lab{stroke:#d08a24}
.card.user{stroke:#8c959f;stroke-dasharray:4 3}.card.data{stroke:#4d7f4a;fill:#f1f8f0}.card.side{stroke:#a9b8a7}
path{fill:none;stroke-width:1.6}path.data{stroke:#4d7f4a;stroke-width:1.8}path.user{stroke:#8c959f}
path.crates{stroke:#3f83d6}path.lab{stroke:#d08a24}marker path{stroke:none}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.note{fill:#9da7b1}.where{fill:#7bbf77}.ground{fill:#0d1117}
.band.crates{fill:#101d30;stroke:#234672}.band.lab{fill:#251a0a;stroke:#5c4115}.card{fill:#161b22}
.card.data{fill:#12211a;stroke:#5a9c56}.card.side{stroke:#46604a}path.data{stroke:#5a9c56}}
"""
    marks = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0.5L7.5 4L0 7.5z" style="fill:{color}"/></marker>'
        for name, color in (("crates", "#3f83d6"), ("lab", "#d08a24"), ("user", "#8c959f"), ("data", "#4d7f4a"))
    )
    height = 950
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {height}" role="img" '
        f'aria-label="FlashCore: crates of the library and the lab, their imports, and the data flow">\n'
        f"<style>{style}</style>\n<defs>{marks}</defs>\n"
        f'<rect width="{W}" height="{height}" class="ground" fill="#fff"/>\n{body}\n</svg>\n'
    )


def main():
    found = crates()
    proofs(found)
    svg = draw(found)
    if sys.argv[1:] == ["--check"]:
        if not OUT.exists() or OUT.read_text(encoding="utf-8") != svg:
            sys.exit("docs/architecture.svg is not current: run scripts/draw_architecture.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        OUT.write_text(svg, encoding="utf-8")


main()
