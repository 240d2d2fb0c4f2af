"""Options that say which episodes of which environment are played; several commands have them."""

from __future__ import annotations

import argparse


def add_env_argument(group: argparse._ArgumentGroup) -> None:
    """`--env`."""
    group.add_argument(
        "--env",
        required=True,
        help="environment id (`agentgym envs` lists them), or MODULE:ID to import MODULE first",
    )


def add_env_kwargs_argument(group: argparse._ArgumentGroup) -> None:
    """`--env-kwargs`."""
    group.add_argument(
        "--env-kwargs",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="the env's parameters",
    )


def add_episode_arguments(group: argparse._ArgumentGroup) -> None:
    """`--task`, `--seed` and `--env-kwargs`."""
    group.add_argument("--task", action="append", metavar="ID", help="this task; repeatable")
    group.add_argument("--seed", type=int, default=0, help="fixes the seed of every episode")
    add_env_kwargs_argument(group)
