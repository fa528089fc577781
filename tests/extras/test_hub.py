"""An agent goes to the Hugging Face Hub and comes back: a local server stands for the Hub."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_settings import ppo_config

import hybridppo
from hybridppo.commands.main import main

pytestmark = pytest.mark.extras

NAME = "user/ppo-CartPole-v1"
COMMIT = "0" * 40
CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))


class Hub(ThreadingHTTPServer):
    """Keeps the files of models in memory, as far as huggingface_hub asks for them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.private: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers requests as the Hub does."""

    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, content: Any, code: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, hub = self.path, self.server
        hub.requests.append(f"POST {path}")
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            hub.private[name] = asked.get("private") or asked.get("visibility") == "private"
            is_new = hub.models.setdefault(name, {}) == {}
            self.answer({"url": f"{hub.address}/{name}", "name": name}, 200 if is_new else 409)
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            self.answer({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]})
        else:
            name = path.removeprefix("/api/models/").removesuffix("/commit/main")
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    hub.models[name][value["path"]] = base64.b64decode(value["content"])
            self.answer({"commitUrl": f"{hub.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT})

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        name, _, rest = self.path.lstrip("/").partition("/resolve/")
        file = rest.partition("/")[2]
        data = self.server.models.get(name, {}).get(file)
        if data is None:
            code = "EntryNotFound" if name in self.server.models else "RepoNotFound"
            return self.answer(b"", 404, X_Error_Code=code)
        return self.answer(data, X_Repo_Commit=COMMIT, ETag=f'"{hashlib.sha256(data).hexdigest()}"')

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    constants = pytest.importorskip("huggingface_hub.constants")
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.address)
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hub") / "run"
    hybridppo.train("CartPole-v1", total_steps=256, seed=3, config=CONFIG, run_dir=path, progress=False)
    return path


def test_an_agent_goes_there_and_comes_back(
    hub: Hub, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir / "video.mp4").write_bytes(b"a film")
    with pytest.raises(SystemExit) as exited:
        main(["push", str(run_dir), NAME, "--episodes", "3", "--private"])
    assert exited.value.code == 0, capsys.readouterr().err
    assert f"model: {hub.address}/{NAME}" in capsys.readouterr().out
    assert hub.private == {NAME: True}
    files = hub.models[NAME]
    assert set(files) == {"agent.safetensors", "card.json", "README.md", "replay.mp4"}
    assert files["replay.mp4"] == b"a film"

    page, card = files["README.md"].decode(), json.loads(files["card.json"])
    for text in ("library_name: hybridppo", 'tags: ["CartPole-v1", ppo,', f'hybridppo.pretrained("{NAME}")'):
        assert text in page
    assert card["settings"]["hidden_sizes"] == [8]
    steps = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))["env_steps"]
    assert (card["seed"], card["total_steps"]) == (3, steps)
    mean = hybridppo.evaluate(run_dir, episodes=3, progress=False).return_mean
    assert {**card["evaluation"], "return_std": 0.0} == {
        "episodes": 3, "seed": 0, "deterministic": True, "return_mean": mean, "return_std": 0.0,
    }  # fmt: skip
    [model] = pytest.importorskip("yaml").safe_load(page.split("---")[1])["model-index"]
    [found] = model["results"]
    assert found["dataset"] == {"type": "CartPole-v1", "name": "CartPole-v1"}
    assert found["metrics"][0]["value"].startswith(f"{mean:.2f} +/- ")
    assert str(tmp_path) not in page + json.dumps(card)

    agent, own = hybridppo.pretrained(NAME, env="CartPole-v1"), hybridppo.load(run_dir)
    assert all(map(torch.equal, agent.actor.parameters(), own.actor.parameters()))
    with pytest.raises(SystemExit) as exited:
        main(["agents", NAME])
    assert exited.value.code == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out) == card
    before = len(hub.requests)
    assert hybridppo.push_to_hub(run_dir, NAME, episodes=1) == f"{hub.address}/{NAME}"  # again
    assert len(hub.requests) > before
    with pytest.raises(hybridppo.EnvError, match="space"):
        hybridppo.pretrained(NAME, env="Pendulum-v1")


def test_a_card_names_no_function_that_is_called(hub: Hub, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hybridppo.push_to_hub(run_dir, NAME, episodes=1)
    card = json.loads(hub.models[NAME]["card.json"])
    hub.models[NAME]["card.json"] = json.dumps({**card, "env": "os:abort", "env_kwargs": {}}).encode()
    monkeypatch.setattr("os.abort", lambda: pytest.fail("the card's function was called"))
    hybridppo.pretrained(NAME)


def test_errors_name_the_model_and_the_remedy(hub: Hub, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hybridppo.HybridPPOError, match=r"model user/nobody: RepositoryNotFoundError.*HF_TOKEN"):
        hybridppo.pretrained("user/nobody")
    with pytest.raises(hybridppo.ConfigurationError, match=r"must be USER/NAME of a model .* got 'a/b/c'"):
        hybridppo.pretrained("a/b/c")
    with pytest.raises(hybridppo.ConfigurationError, match="must be USER/NAME"):
        hybridppo.push_to_hub(run_dir, "CartPole")
    file = hybridppo.load(run_dir).save(run_dir.parent / "agent.safetensors")
    with pytest.raises(hybridppo.RunDirectoryError, match="is a file: pass a run's folder"):
        hybridppo.push_to_hub(file, NAME)
    monkeypatch.setattr("hybridppo.tools.gallery.is_installed", lambda name: False)
    with pytest.raises(hybridppo.ConfigurationError, match=r"needs huggingface_hub: pip install .*hub"):
        hybridppo.pretrained(NAME)
