"""Parameters of a module, sharded over data parallel: lay out, materialise, gather, release, reduce (ZeRO 0-3).

Knows nothing of models, optimizers or schedules: it takes an nn.Module and a list of units (see README.md here).
"""
