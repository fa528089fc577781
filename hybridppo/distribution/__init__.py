"""Who runs where: a distribution policy cuts a training into fragments, and says what crosses between them.

Inside each fragment the placement is the same object as ever. Agents, samplers and placements know nothing of it.
"""
