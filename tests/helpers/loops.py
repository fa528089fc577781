"""Optimization loops for tests: alone, with any backend."""

from typing import Any

from hybridppo.agents import PPO
from hybridppo.agents.agent import Exchange, OptimizationLoop
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.recorded_step import RecordedStep
from hybridppo.system.devices import Record


def loop_of(agent: Any, backend: Any = Backend) -> OptimizationLoop:
    """A loop with this backend, instead of the agent's own choice."""
    return OptimizationLoop(agent, backend(getattr(agent, "objective", agent)), Exchange())


def recorded_loop_of(
    agent: Any, record: Record, backend: Any = Backend, *, usual_size: int | None = None
) -> tuple[OptimizationLoop, RecordedStep]:
    """A loop with recorded steps."""
    loop = loop_of(agent, backend)
    loop.whole_step = RecordedStep(loop, agent, record, usual_size=usual_size)
    return loop, loop.whole_step


def record_steps(agent: PPO, record: Record) -> None:
    """Let the agent replay its steps until its parameters change."""
    agent.loop()
    agent._loop, _ = recorded_loop_of(agent, record)
