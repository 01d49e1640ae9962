"""megatron_zero: Megatron-style GPT pretraining on its own ZeRO engine. Importing it starts nothing."""

__version__ = "0.1.0"
