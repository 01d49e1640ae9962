"""Tokens on disk and the way from there to micro-batches: tokenizers, .bin/.idx files, samples, batches."""
