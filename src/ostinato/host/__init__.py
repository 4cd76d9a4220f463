"""What the machine and its user allow: folders, locks, atomic writes, CPU and memory limits.

Standard library, platformdirs and filelock only. This layer stands beside `errors`, so it raises builtin
exceptions; those who call it turn them into typed ones.
"""
