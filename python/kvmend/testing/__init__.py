"""Faults and helpers for tests and demonstrations; nothing here runs in a server."""
