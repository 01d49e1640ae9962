"""Checkpoints: sharded, verified, readable under another layout. format.md describes what lies on disk."""
