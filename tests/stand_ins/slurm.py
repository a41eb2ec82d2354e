"""Slurm's srun, squeue and sinfo, as far as the kit calls them: every node is this machine, every task a process.

They answer as Slurm 22.05 does. `install` makes the programs; jobs are run by tests/slurm.py.
"""

import argparse
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

_FLAGS = ("overlap", "label")
_VALUES = (
    *("nodes", "ntasks", "ntasks-per-node", "nodelist", "cpus-per-task", "gres", "mem", "mpi", "wait", "time"),
    *("jobid", "job-name", "kill-on-bad-exit", "export", "chdir", "immediate"),
)


def install(folder: Path) -> None:
    """Write the programs into a folder for the PATH; what runs is kept in the folder `steps` beside them."""
    (folder / "steps").mkdir(parents=True)
    for name in ("srun", "squeue", "sinfo"):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n', encoding="utf-8")
        program.chmod(0o755)


def main(folder: Path, name: str, words: list[str]) -> int:
    match name:
        case "srun":
            return _srun(folder, words)
        case "squeue" if words == ["--me", "--steps", "--noheader", "--format=%i %N %j"]:
            for step in sorted((folder / "steps").iterdir()):
                print(step.read_text(encoding="utf-8"))
            return 0
        case "sinfo" if words == ["--noheader", "--format=%R %a"]:
            print("debug up")
            return 0
    print(f"{name}: unrecognized option", file=sys.stderr)
    return 1


def _srun(folder: Path, words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="srun", allow_abbrev=False)
    for flag in _FLAGS:
        parser.add_argument(f"--{flag}", action="store_true")
    for value in _VALUES:
        parser.add_argument(f"--{value}")
    options = parser.parse_args(words[: _command_at(words)])
    command = words[_command_at(words) :]
    job = options.jobid or os.environ.get("SLURM_JOB_ID", str(os.getpid()))  # else a job of its own
    nodes = _nodes(options.nodelist) or [f"node{number}" for number in range(1, int(options.nodes or 1) + 1)]
    given = (each.partition("=") for each in (options.export or "").split(",") if "=" in each)
    environment = {**os.environ, **{key: value for key, _, value in given}}
    step = next(number for number in range(1_000) if not (folder / "steps" / f"{job}.{number}").exists())
    record = folder / "steps" / f"{job}.{step}"
    record.write_text(f"{job}.{step} {','.join(nodes)} {options.job_name or Path(command[0]).name}", encoding="utf-8")
    try:
        return _tasks(command, nodes, environment | {"SLURM_JOB_ID": job, "SLURM_STEP_ID": str(step)}, options)
    finally:
        record.unlink()


def _command_at(words: list[str]) -> int:
    return next(place for place, word in enumerate(words) if not word.startswith("--"))


def _nodes(names: str | None) -> list[str]:
    """Return the nodes of a list such as node1,node2 or node[1-2]."""
    if found := re.fullmatch(r"(\w+)\[(\d+)-(\d+)\]", names or ""):
        return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[3]) + 1)]
    return names.split(",") if names else []


def _tasks(command: list[str], nodes: list[str], environment: dict[str, str], options: argparse.Namespace) -> int:
    """Run the command once a node; each task gets all of the standard input."""
    tasks = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if options.label else None,
            cwd=options.chdir,
            env=environment | {"SLURMD_NODENAME": node, "SLURM_PROCID": str(number), "SLURM_NODEID": str(number)},
        )
        for number, node in enumerate(nodes)
    ]

    threading.Thread(target=_hand_out, args=(tasks,), daemon=True).start()
    for number, task in enumerate(tasks):
        for line in task.stdout or ():
            print(f"{number}: {line.decode()}", end="", flush=True)
    codes = [task.wait() for task in tasks]
    for number, code in enumerate(codes):
        if code:
            print(f"srun: error: {nodes[number]}: task {number}: Exited with exit code {code}", file=sys.stderr)
    return max(code % 256 for code in codes)


def _hand_out(tasks: list[subprocess.Popen[bytes]]) -> None:
    while piece := os.read(0, 65_536):
        for task in tasks:
            _give(task, piece)
    for task in tasks:
        _give(task, None)


def _give(task: subprocess.Popen[bytes], piece: bytes | None) -> None:
    try:
        if piece is None:
            task.stdin.close()  # type: ignore[union-attr]
        else:
            task.stdin.write(piece)  # type: ignore[union-attr]
            task.stdin.flush()  # type: ignore[union-attr]
    except OSError:  # it has ended
        pass


if __name__ == "__main__":
    sys.exit(main(Path(os.environ["STAND_IN_SLURM"]), sys.argv[1], sys.argv[2:]))
