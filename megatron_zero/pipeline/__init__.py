"""Schedules as data and one runner for them. The stage is a callable; nothing here knows ZeRO or models."""
