"""Rollouts behind HTTP: the service. `agentgym.remote` has what talks to it.

It needs the `serve` extra; `agentgym.serve.app` makes the application.
"""
