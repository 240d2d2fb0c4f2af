"""A policy small enough to train on two CPU cores while you watch, and the shop it is made for.

A Llama of half a million parameters with a word-level tokenizer for the tiny level of
`agentgym/WebShop-v0`. `build` makes it by a warm start on scripted episodes of training tasks, and
`weights/` is the result; `learning` evaluates it on held-out tasks, trains it with GRPO and
evaluates it again.
"""
