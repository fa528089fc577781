"""How the site is built: see `scripts/site.py`."""

import os
from typing import Any

from docutils.nodes import document
from sphinx.addnodes import index

from hybridppo import __version__

project = "hybridppo"
author = copyright = "The hybridppo maintainers"
release = version = __version__
root_doc = "docs/index"
include_patterns = ["docs/*.md", "docs/developers/*.md", "notebooks/*.ipynb", "benchmarks/README.md", "CHANGELOG.md"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_use_rtype = False
napoleon_preprocess_types = False
add_module_names = False

html_theme = "furo"
html_title = f"hybridppo {__version__}"
html_copy_source = False
html_show_sourcelink = False
html_extra_path = ["index.html"]
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True

if address := os.environ.get("REPOSITORY", "").rstrip("/"):
    icon = f"<span>{address.split('://')[-1]}</span>"
    html_theme_options = {
        "source_view_link": address + "/blob/main/{filename}",
        "source_edit_link": address + "/edit/main/{filename}",
        "footer_icons": [{"name": "repository", "url": address, "html": icon, "class": ""}],
    }

SYNONYMS = {
    "docs/agents": "inference, predict, action probabilities, value function, replay buffer",
    "docs/architecture": "source code, contributing",
    "docs/callbacks": "evaluation callback, EvalCallback, early stopping, curriculum, custom metrics",
    "docs/cuda": "GPU, CUDA, NVIDIA, device, mixed precision, bf16",
    "docs/distributed": "multi-GPU, DDP, torchrun, data parallel, cluster",
    "docs/environments": "gym, wrappers, spaces, action masking, invalid actions, MaskablePPO, VecEnv, Atari, pixels",
    "docs/gallery": "Hugging Face, Hugging Face Hub, model hub, push to hub, model card, pretrained",
    "docs/install": "pip, install, conda, Docker, Apple, Apple silicon, MPS, macOS, Windows, CPU wheels, Jupyter",
    "docs/learning": "tips, debugging, not learning, reward shaping, exploration, sparse rewards, hyperparameters",
    "docs/loggers": "TensorBoard, Weights & Biases, wandb, MLflow, logging, experiment tracking",
    "docs/networks": "LSTM, GRU, RecurrentPPO, net_arch, CNN, policy_kwargs, features extractor, VecNormalize, gSDE",
    "docs/own_loss": "custom loss, auxiliary loss, custom algorithm, intrinsic reward, entropy bonus",
    "docs/placements": "sampling device, learning device, hybrid, overlap, asynchronous",
    "docs/reference": "API, functions, command line, CLI, exit codes",
    "docs/reliability": "reproducibility, determinism, seeds, crash, NaN, recovery",
    "docs/runs": "checkpoints, checkpoint frequency, save, resume, metrics, learning rate schedule, yaml, cloning",
    "docs/several_agents": "multi-agent, MAPPO, PettingZoo, self-play, AEC, turn-based, league, Elo, board game",
    "docs/tensors": "Isaac Lab, Brax, MuJoCo Playground, batched environments, massively parallel, robots, rsl_rl",
    "docs/tools": "hyperparameters, tuning, hyperparameter tuning, Optuna, sweep, deploy, deployment, export, ONNX, "
    "TorchScript, C++, LibTorch, plots, learning curves, rliable, video, benchmark",
}
"""Words under which readers search for a page, and which it need not contain: entries of the site's index."""


def add_synonyms(app: Any, doctree: document) -> None:
    """Add the words of a page to the index, which the search of the site looks through."""
    words = SYNONYMS.get(app.env.docname, "").split(", ")
    target = doctree.next_node(condition=lambda node: bool(node.get("ids")) if hasattr(node, "get") else False)
    entries = [("single", word, target["ids"][0], "", None) for word in words if word]
    if entries:
        doctree.insert(0, index(entries=entries))


def without_fields(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Leave out the fields that `help` shows in the docstring of a class, which has an entry for each of them."""
    if what == "class" and "Attributes:" in lines:
        del lines[lines.index("Attributes:") :]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("doctree-read", add_synonyms)
    app.connect("autodoc-process-docstring", without_fields, priority=400)  # before napoleon
