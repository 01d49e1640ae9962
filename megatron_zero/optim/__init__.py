"""The update and its scalars: sub-groups, Adam state, global norm, learning rate. Knows nothing of tiers or NVMe."""
