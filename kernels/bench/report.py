"""The machine of a benchmark, and tables and a plot of what int4_gemm.py measured."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import halfbyte_kernels as hb

DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
Entry = dict[str, Any]
OURS = {"W4A8": "halfbyte W4A8", "W4A16": "halfbyte W4A16"}
GOALS = {"W4A8": 1.5, "W4A16": 1.1}


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next(line for line in lines if line.startswith("flags")).split()
    wanted = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
    return {
        "cpu": next(line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        "family": next(line.split(":")[1].strip() for line in lines if line.startswith("cpu family")),
        "flags": [flag for flag in wanted if flag in flags],
        "cores": os.cpu_count(),
        "variant": hb.info()["cpu"]["selected"],
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
    }


def made_by(result: dict[str, Any]) -> str:
    """Where, when and with what a result was made, in sentences."""
    about = result["machine"]
    versions = ", ".join(f"{name} {text}" for name, text in result["versions"].items())
    return (
        f"Made by `make bench-kernels` on {result['date']}; do not edit. {about['cpu']} (family "
        f"{about['family']}; {', '.join(about['flags'])}), {about['cores']} cores, load average "
        f"{about['load']:.1f} at the end. {versions}."
    )


def save(stem: str, result: dict[str, Any], text: str) -> None:
    """Writes docs/benchmarks/<stem>.json and .md."""
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    (DOCS / f"{stem}.md").write_text(text)
    print(f"wrote {DOCS / stem}.json and .md")


def progress(entries: list[Entry]) -> str:
    first = entries[0]
    words = ", ".join(f"{entry['name']} {entry['milliseconds']:.3f}" for entry in entries)
    return f"K {first['k']} N {first['n']} M {first['rows']} threads {first['threads']} (ms): {words}"


def rivals(entries: list[Entry], bits: tuple[int, ...]) -> list[Entry]:
    """Peers that keep so many bits of an activation."""
    return [entry for entry in entries if not entry["name"].startswith("halfbyte") and entry["bits"] in bits]


def groups(result: dict[str, Any]) -> dict[tuple[int, int, int], dict[int, list[Entry]]]:
    """{(k, n, threads): {rows: entries}} in the order of measuring."""
    made: dict[tuple[int, int, int], dict[int, list[Entry]]] = {}
    for entry in result["entries"]:
        key = (entry["k"], entry["n"], entry["threads"])
        made.setdefault(key, {}).setdefault(entry["rows"], []).append(entry)
    return made


def ours(entries: list[Entry], path: str) -> Entry:
    return next(entry for entry in entries if entry["name"] == OURS[path])


def ratio_cell(mine: Entry, peers: list[Entry], goal: float) -> str:
    best = min(peers, key=lambda entry: entry["milliseconds"])
    ratio = best["milliseconds"] / mine["milliseconds"]
    mark = " (the peer wins)" if ratio < 1 else (" (below the goal)" if ratio < goal else "")
    return f"{ratio:.2f}x {best['name']}{mark}"


def summary(result: dict[str, Any]) -> list[str]:
    lines = [
        "| K | N | threads | M | W4A8 ms | W4A8 against the best peer | W4A16 ms "
        "| W4A16 against the best 16-bit peer | W4A16 against the best 32-bit peer "
        "| W4A8 GB/s of weights (share of the read bandwidth) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (k, n, threads), by_rows in groups(result).items():
        roof = result["readBytesPerSecond"][str(threads)]
        for rows, entries in by_rows.items():
            w4a8, w4a16 = ours(entries, "W4A8"), ours(entries, "W4A16")
            speed = w4a8["weightBytes"] / w4a8["milliseconds"] * 1e3
            share = f"{speed / 1e9:.1f} ({speed / roof:.0%})" if rows == 1 else ""
            ratios = (
                ratio_cell(w4a8, rivals(entries, (8, 16, 32)), GOALS["W4A8"]),
                ratio_cell(w4a16, rivals(entries, (16,)), GOALS["W4A16"]),
                ratio_cell(w4a16, rivals(entries, (32,)), 1.0),
            )
            lines.append(
                f"| {k} | {n} | {threads} | {rows} | {w4a8['milliseconds']:.3f} | {ratios[0]} "
                f"| {w4a16['milliseconds']:.3f} | {ratios[1]} | {ratios[2]} | {share} |"
            )
    return lines


def details(result: dict[str, Any]) -> list[str]:
    lines = []
    for (k, n, threads), by_rows in groups(result).items():
        names = [entry["name"] for entry in next(iter(by_rows.values()))]
        lines += [f"### K {k}, N {n}, {threads} thread{'s' if threads > 1 else ''}", ""]
        lines += [f"| ms (spread) | {' | '.join(f'M {rows}' for rows in by_rows)} | relative error |"]
        lines += [f"|---|{'---|' * (len(by_rows) + 1)}"]
        for name in names:
            found = [
                next(entry for entry in entries if entry["name"] == name) for entries in by_rows.values()
            ]
            cells = " | ".join(f"{entry['milliseconds']:.3f} ({entry['spread']:.2f})" for entry in found)
            lines.append(f"| {name} | {cells} | {found[-1]['relativeError']:.2%} |")
        lines.append("")
    return lines


def page(result: dict[str, Any], plot_name: str | None = None) -> str:
    roof = result["readBytesPerSecond"]
    bandwidth = ", ".join(f"{value / 1e9:.1f} GB/s with {threads}" for threads, value in roof.items())
    lines = [
        f"# INT4 GEMM on a CPU: variant {result['machine']['variant']}",
        "",
        f"{made_by(result)} "
        f"Read bandwidth (512 MiB in huge pages, the faster of torch.sum and memchr): {bandwidth} threads.",
        "",
        "Symmetric weights, groups of 128 columns (64 where K is 576), bfloat16 activations (float32 where a "
        "peer takes nothing else). Weights are rotated over more memory than the last-level cache holds; a "
        "figure is the best of interleaved rounds, its spread the worst over the best. W4A8 rounds "
        "activations to 8 bits, as ONNX Runtime's accuracy 4 and ggml do; W4A16 to 16 bits with a shared "
        "power of two: a bfloat16 value of at least 1/128 of its group's largest is exact. Relative error: "
        "against the fp64 product of the same float matrix, at the largest M (ggml quantizes that matrix "
        "anew).",
        "",
        *([f"![Speed against peers]({plot_name})", ""] if plot_name else []),
        *summary(result),
        "",
        "## All figures",
        "",
        *details(result),
    ]
    return "\n".join(lines).rstrip() + "\n"


def plot(result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    made = groups(result)
    threads = sorted({key[2] for key in made})
    shapes = sorted({key[:2] for key in made})
    styles = line_styles(list(dict.fromkeys(entry["name"] for entry in result["entries"])))
    figure, axes = pyplot.subplots(
        len(threads), len(shapes), figsize=(4 * len(shapes), 3.2 * len(threads)), squeeze=False, sharex=True
    )
    for row, count in enumerate(threads):
        for column, (k, n) in enumerate(shapes):
            by_rows, axis = made[k, n, count], axes[row][column]
            for name in [entry["name"] for entry in next(iter(by_rows.values()))]:
                speeds = [
                    2 * rows * k * n / next(e["milliseconds"] for e in entries if e["name"] == name) / 1e6
                    for rows, entries in by_rows.items()
                ]
                axis.plot(list(by_rows), speeds, marker=".", label=name, **styles[name])
            axis.set(
                xscale="log",
                yscale="log",
                title=f"K {k}, N {n}, {count} thread{'s'[: count - 1]}",
                xlabel="M",
                ylabel="GOP/s",
            )
    # The last shape has every peer; ggml's Q4_K cannot do K 576.
    handles, labels = axes[-1][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize="small", frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, metadata={"Date": None})


def line_styles(names: list[str]) -> dict[str, dict[str, Any]]:
    """One colour a name in every panel, whichever peers a panel lacks; ours are thick, peers dashed."""
    from matplotlib import pyplot

    tones = pyplot.get_cmap("tab20").colors
    colours = iter([*tones[::2], *tones[1::2]])
    return {
        name: {"color": next(colours)}
        | ({"linewidth": 2.5} if name.startswith("halfbyte") else {"linewidth": 1.2, "linestyle": "--"})
        for name in names
    }
