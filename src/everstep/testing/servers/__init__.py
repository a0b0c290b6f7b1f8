"""Servers that a test can stop, pause and slow down: for trackers, and for what else talks to one.

proxy.py         a server before another one, that delays, refuses or breaks what passes through it
mlflow_server.py a real MLflow server, and what it has recorded
"""
