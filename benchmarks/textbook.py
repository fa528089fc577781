"""The loop of the textbooks, plain torch: CartPole, an action at a time, an update after each whole episode.

    python benchmarks/placement_turn.py textbook --learning-device cuda

`scripts/compare_placements.py` compares this library with this baseline. It is written as tutorials write it (modules,
`torch.distributions`, lists of transitions, one optimizer for each network) and uses nothing of the library. As in such
loops, hidden layers are ReLU, torch initializes the parameters, the critic learns the one-step target
`r + gamma V(s')`, and an episode cut by the time limit counts as ended.
"""

import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ENV_ID = "CartPole-v1"
GAMMA, GAE_LAMBDA, CLIP_RANGE, NUM_EPOCHS = 0.98, 0.95, 0.2, 10
ACTOR_LEARNING_RATE, CRITIC_LEARNING_RATE = 1e-3, 1e-2

Transition = tuple[Any, int, float, Any, bool]


@dataclass
class Settings:
    """The settings that a run may vary."""

    episodes: int = 500
    seed: int = 0
    hidden_sizes: tuple[int, ...] = (128,)
    sampling_device: str = "cpu"
    learning_device: str = "cpu"
    threads: int | None = None
    """Threads of torch; None for torch's own default."""


class Actor(nn.Module):
    """Probabilities of the actions."""

    def __init__(self, num_inputs: int, hidden_sizes: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        sizes = [num_inputs, *hidden_sizes]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], num_actions)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, obs] -> [B, actions]`."""
        for layer in self.hidden:
            x = F.relu(layer(x))
        return F.softmax(self.head(x), dim=1)


class Critic(nn.Module):
    """The value of a state."""

    def __init__(self, num_inputs: int, hidden_sizes: tuple[int, ...]) -> None:
        super().__init__()
        sizes = [num_inputs, *hidden_sizes]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, obs] -> [B, 1]`."""
        for layer in self.hidden:
            x = F.relu(layer(x))
        values: Tensor = self.head(x)
        return values


class Agent:
    """Actor, critic, and an optimizer for each."""

    def __init__(self, num_inputs: int, num_actions: int, settings: Settings) -> None:
        self.sampling_device = torch.device(settings.sampling_device)
        self.learning_device = torch.device(settings.learning_device)
        self.actor = Actor(num_inputs, settings.hidden_sizes, num_actions).to(self.learning_device)
        self.critic = Critic(num_inputs, settings.hidden_sizes).to(self.learning_device)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=ACTOR_LEARNING_RATE)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=CRITIC_LEARNING_RATE)

    def take_action(self, state: Any) -> int:
        """Draw an action for one state."""
        probs = self.actor(torch.tensor([state], dtype=torch.float, device=self.sampling_device))
        action = torch.distributions.Categorical(probs).sample()
        return int(action.item())

    def update(self, transitions: list[Transition]) -> None:
        """Learn from one episode."""
        states, actions, rewards, next_states, dones = zip(*transitions, strict=True)
        device = self.learning_device
        state = torch.tensor(states, dtype=torch.float, device=device)
        action = torch.tensor(actions, device=device).view(-1, 1)
        reward = torch.tensor(rewards, dtype=torch.float, device=device).view(-1, 1)
        next_state = torch.tensor(next_states, dtype=torch.float, device=device)
        done = torch.tensor(dones, dtype=torch.float, device=device).view(-1, 1)

        td_target = reward + GAMMA * self.critic(next_state) * (1 - done)
        td_error = td_target - self.critic(state)
        advantage = compute_advantage(td_error.detach().cpu()).to(device)
        old_log_prob = torch.log(self.actor(state).gather(1, action)).detach()
        for _ in range(NUM_EPOCHS):
            log_prob = torch.log(self.actor(state).gather(1, action))
            ratio = torch.exp(log_prob - old_log_prob)
            surrogate = ratio * advantage
            clipped = torch.clamp(ratio, 1 - CLIP_RANGE, 1 + CLIP_RANGE) * advantage
            actor_loss = torch.mean(-torch.min(surrogate, clipped))
            critic_loss = F.mse_loss(self.critic(state), td_target.detach())
            self.actor_optimizer.zero_grad()
            self.critic_optimizer.zero_grad()
            actor_loss.backward()
            critic_loss.backward()
            self.actor_optimizer.step()
            self.critic_optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # its time is the update's


def compute_advantage(td_error: Tensor) -> Tensor:
    """Generalized advantage estimates `[T, 1]` of an episode's TD errors `[T, 1]`."""
    advantages = []
    advantage = 0.0
    for error in reversed(td_error[:, 0].tolist()):
        advantage = GAMMA * GAE_LAMBDA * advantage + error
        advantages.append(advantage)
    return torch.tensor(advantages[::-1], dtype=torch.float).view(-1, 1)


def train(settings: Settings) -> dict[str, Any]:
    """Train for all episodes; returns their returns and the times."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    env = gym.make(ENV_ID)
    env.action_space.seed(settings.seed)
    agent = Agent(env.observation_space.shape[0], int(env.action_space.n), settings)  # type: ignore[index,attr-defined]
    moves = agent.sampling_device != agent.learning_device
    returns: list[float] = []
    env_steps, sampling, learning = 0, 0.0, 0.0
    cpu_start, start = time.process_time(), time.perf_counter()
    for episode in range(settings.episodes):
        began = time.perf_counter()
        if moves:
            agent.actor.to(agent.sampling_device)
        transitions: list[Transition] = []
        state, _ = env.reset(seed=settings.seed if episode == 0 else None)
        done, episode_return = False, 0.0
        while not done:
            action = agent.take_action(state.tolist())
            next_state, reward, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            transitions.append((state.tolist(), action, float(reward), next_state.tolist(), done))
            state = next_state
            episode_return += float(reward)
        if moves:
            agent.actor.to(agent.learning_device)
        sampled = time.perf_counter()
        agent.update(transitions)
        returns.append(episode_return)
        env_steps += len(transitions)
        sampling += sampled - began
        learning += time.perf_counter() - sampled
    seconds = time.perf_counter() - start
    cpu_seconds = time.process_time() - cpu_start
    last = returns[-100:]
    return {
        **asdict(settings),
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "env_steps": env_steps,
        "steps_per_second": env_steps / seconds,
        "seconds_sampling": sampling,
        "seconds_learning": learning,
        "updates": settings.episodes,
        "cpu_load": cpu_seconds / seconds,
        "return_mean": sum(last) / len(last),
    }
