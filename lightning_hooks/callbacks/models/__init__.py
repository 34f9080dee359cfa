"""Monitors of what only some models have: attention, routers."""
