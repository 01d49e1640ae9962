"""Layers whose weights are divided over the tensor-parallel axis, and the plan of how each parameter is divided."""
