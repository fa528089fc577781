"""Placements: where the actor samples, where the agent learns, and when parameters cross between them.

    placement = Mirrored(sampling="cpu", learning="cuda")
    placement.prepare(agent)
    with placement.sampling(agent) as actor:        # parameters where the environments are
        rollout = sampler.collect(actor)
    with placement.learning(agent):                 # parameters where the FLOPs are
        metrics = agent.update(placement.to_learner(rollout))

Here: the base of all placements (`base.py`), a file for each placement, and copies between devices (`crossing.py`). No
other room moves a module or a rollout between devices. Not here: the choice of the fastest placement (`auto/`), and the
loop (`runners/`). Begin with `base.py`.
"""
