"""The optimizer step over tiers: which elements rest on DEVICE and which on HOST, and the step that joins them."""
