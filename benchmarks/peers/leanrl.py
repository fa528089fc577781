"""LeanRL: its script, from a checkout, with the case's layer widths, and with CUDA graphs on a CUDA device."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import torch
from cases import Case, Mark, work_done

from peers.cleanrl import flags


def run(case: Case, checkouts: Path | None) -> dict[str, Any]:
    """A turn of `ppo_continuous_action_torchcompile.py`, whose environments get no wrapper but `ClipAction`.

    Nothing is compiled, since that takes minutes. Rows that environments spend on a reset count as steps here, in its
    favor: it trains on them as on others.
    """
    if checkouts is None:
        return {"left_out": "no package: scripts of a checkout (--checkouts)"}
    if isinstance(gym.make(case.env_id).action_space, gym.spaces.Discrete):
        return {"left_out": "its script of gymnasium's environments has continuous actions"}
    if len(case.hidden_sizes) != 2 or len(set(case.hidden_sizes)) != 1:
        return {"left_out": "its scripts have two layers of one width"}
    import tqdm

    name = "ppo_continuous_action_torchcompile.py"
    source = (checkouts / "LeanRL" / "leanrl" / name).read_text(encoding="utf-8")
    source = re.sub(r"\b64\b", str(case.hidden_sizes[0]), source)  # as its user would
    others = r"Flatten|RecordEpisode|Normalize|Transform"
    source = re.sub(rf"^ +env = gym\.wrappers\.({others}).*\n", "", source, flags=re.MULTILINE)
    # Actors have no gradient in the script's time; in that of newer versions of tensordict, they have one.
    source = re.sub(r"= (agent_inference\.get_\w+)", r"= torch.no_grad()(\1)", source)
    marks: list[Mark] = []

    class Iterations:
        """Stands for the progress bar, and notes when iterations end."""

        def __init__(self, numbers: range) -> None:
            self._numbers = numbers

        def __iter__(self) -> Iterator[int]:
            for number in self._numbers:
                yield number
                if case.device == "cuda":
                    torch.cuda.synchronize()
                marks.append(Mark(time.perf_counter(), number * case.batch_size))

        def set_description(self, text: str) -> None:
            """Nothing is shown."""

    sys.argv = [name, *flags(case)]
    sys.argv += ["--cuda", "--cudagraphs"] if case.device == "cuda" else ["--no-cuda"]
    sys.modules["wandb"] = SimpleNamespace(init=lambda **_: None, log=lambda *_, **__: None)  # type: ignore[assignment]
    tqdm.tqdm = Iterations  # type: ignore[misc,assignment]
    exec(compile(source, name, "exec"), {"__name__": "__main__", "__file__": name})
    return work_done(marks, case)
