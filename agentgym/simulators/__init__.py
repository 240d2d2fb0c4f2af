"""Simulated users and tools: played by a model (`user`, `tools`), or by a program that needs none.

`HostedUser` and `HostedTools` take a model client; `ScriptedUser`, `StateMachineTools` and
`FixtureTools` are embedded and deterministic.
"""
