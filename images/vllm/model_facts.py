"""Writes vLLM's own cache of facts about model classes, for the architectures of kernels/matrix.yaml.

Without it each server start asks a second Python process for the facts of its one class: 15 s on two cores.
vLLM checks the hash of the class's source, so facts of another version are never used.
"""

import sys
from pathlib import Path

import yaml
from vllm import envs
from vllm.model_executor.models import registry


def main(matrix: Path) -> None:
    # Here nothing is lost when the class is imported into this process; a server must not touch its GPU yet.
    registry._run_in_subprocess = lambda ask: ask()
    (Path(envs.VLLM_CACHE_ROOT) / "modelinfos").mkdir(exist_ok=True)  # also where no class can be asked
    for architecture in yaml.safe_load(matrix.read_text())["architectures"]:
        name = architecture["name"]
        try:
            registry.ModelRegistry.models[name].inspect_model_cls()
        except Exception as error:  # a class may need its GPU: the server finds out by itself
            print(f"model facts: none of {name}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
