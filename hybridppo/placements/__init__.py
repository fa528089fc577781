"""Placements: where the actor samples, where the agent learns, and when parameters cross between them.

    placement = Mirrored(sampling="cpu", learning="cuda")
    placement.prepare(agent)
    with placement.sampling(agent) as actor:        # parameters where the environments are
        rollout = sampler.collect(actor)
    with placement.learning(agent):                 # parameters where the FLOPs are
        metrics = agent.update(placement.to_learner(rollout))

`placement.py` has the placements; `crossing.py` copies between devices, and has the actors that sample by such copies.
No other package moves a module or a rollout between devices. Not here: the choice of the fastest placement (`auto/`),
and the loop (`runners/`). Begin with `placement.py`.
"""
