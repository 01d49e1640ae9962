"""Ranks, axes of the mesh, and the collectives over them. The only package that names torch.distributed's globals."""
