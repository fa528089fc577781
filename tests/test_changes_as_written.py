"""Changes of docs/own_loss.md and examples/sac.py run as they are written, everywhere, and resume to the same bits."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from selection import only_by_default
from stop_after import StopAfter

import hybridppo
from hybridppo import Mirrored, PPOConfig

ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```", re.MULTILINE | re.DOTALL)
BLOCKS = dict(SECTION.findall((ROOT / "docs" / "own_loss.md").read_text(encoding="utf-8")))
BLOCKS["SAC"] = (ROOT / "examples" / "sac.py").read_text(encoding="utf-8")
PLACES: dict[str, dict[str, Any]] = {
    "hybrid": {"placement": Mirrored("cpu", "cpu", force_copy=True)},
    "workers": {"num_workers": 2},
}
OWN = ("agent", "loss", "modules", "advantages", "config")


def small(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a training with fewer steps than on the page, and of other agents with smaller networks."""
    config = options.get("config") or PPOConfig()
    if isinstance(config, PPOConfig):
        config = replace(config, num_envs=2, num_steps=16, num_minibatches=2, num_epochs=2)
    else:
        config = replace(
            config, num_envs=2, learning_starts=32, batch_size=16, steps_per_iteration=64, hidden_sizes=(16,)
        )
    everywhere = {"seed": 0, "placement": "cpu", "vectorization": "sync", "progress": False, "total_steps": 192}
    return {**options, **everywhere, "config": config}


def as_written(name: str, **options: Any) -> Any:
    """A block's training, with other options."""
    found: list[Any] = []
    train = hybridppo.train

    def instead(env: Any, **given: Any) -> Any:
        found.append((env, {**small(given), **options}))
        found.append(train(env, **found[0][1]))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hybridppo, "train", instead)
        exec(compile(BLOCKS[name], name, "exec"), {"__name__": "__main__"})
    return found


def test_every_change_is_found() -> None:
    assert set(BLOCKS) == {
        "A KL penalty", "An auxiliary prediction", "Behaviour cloning beside PPO", "Symmetry",
        "Another advantage estimate", "Curiosity", "Behaviour cloning beside TD3", "SAC",
    }  # fmt: skip


@pytest.mark.parametrize("name", only_by_default(("SAC",), BLOCKS, pytest.mark.slow))
def test_a_change_runs_everywhere_and_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    (env, options), whole = as_written(name)
    for where, place in PLACES.items():
        torch.manual_seed(0)  # of modules that the block makes
        result = as_written(name, **place)[1]
        assert torch.equal(result.agent.parameters.values, whole.agent.parameters.values), where
    stopped = hybridppo.train(env, **{**options, "run_dir": tmp_path / "run", "callbacks": [StopAfter(2)]})
    assert stopped.metrics["iteration"] == 2
    own = {name: options[name] for name in OWN if name in options and name != "config"}
    resumed = hybridppo.resume(tmp_path / "run", progress=False, **own)
    assert torch.equal(resumed.agent.parameters.values, whole.agent.parameters.values)
