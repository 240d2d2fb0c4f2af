r"""Train a policy on an environment with GRPO (TRL on vLLM).

Settings come from a TOML file, from --set, and from the options here, the later ones winning.
Checkpoints, traces, metrics and the trained model go to OUT. Ctrl-C saves a checkpoint and --resume
continues from it.

Examples:
  agentgym train --env agentgym/WebShop-v0 --model PATH-OR-ID --config train_webshop.toml
  agentgym train --env agentgym/WebShop-v0 --model PATH-OR-ID --out runs/x --set steps=200 \
      --set grpo.beta=0.01
  agentgym train --set help
  agentgym train --out runs/x --resume
  agentgym train --env agentgym/WebShop-v0 --model PATH-OR-ID --print-server-command
  agentgym train --env agentgym/WebShop-v0 --model PATH-OR-ID --policy-server http://gpu1:8000 \
      --policy-server http://gpu2:8000 --sync-folder /shared/weights
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--env", metavar="ID", help="environment id (`agentgym envs` lists them)")
    parser.add_argument("--model", metavar="PATH-OR-ID", help="folder or hub id of the policy")
    parser.add_argument("--config", metavar="FILE.toml", type=Path, help="training settings")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="one setting, such as steps=20, eval.every=10 or grpo.beta=0.04; may be repeated; "
        "`--set help` lists all",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="folder for all the run makes (default: a new one under runs/)",
    )
    servers = parser.add_argument_group(
        "policy on vLLM servers", "without any, a vLLM in the trainer's own process samples"
    )
    servers.add_argument(
        "--policy-server",
        metavar="URL",
        action="append",
        dest="policy_servers",
        help="a vLLM server that samples, such as http://gpu1:8000; may be repeated",
    )
    servers.add_argument(
        "--sync",
        choices=("folder", "lora", "nccl"),
        help="how servers get new weights (default: folder)",
    )
    servers.add_argument(
        "--sync-folder",
        metavar="DIR",
        type=Path,
        help="folder that trainer and servers share, for weights on their way",
    )
    servers.add_argument(
        "--service",
        metavar="URL",
        help="rollout service that plays the episodes (`agentgym serve`), asking the servers",
    )
    servers.add_argument(
        "--print-server-command",
        action="store_true",
        help="print how to start such a server for these settings, and stop",
    )
    parser.add_argument("--resume", action="store_true", help="continue from OUT's last checkpoint")
    parser.add_argument(
        "--merge",
        action="store_true",
        help="after a run with lora, also write base model and adapter in one, to OUT/merged",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Train; returns 0 when the run came to its end."""
    if "help" in args.settings:
        from agentgym.train.config_help import settings_help

        print(settings_help())
        return 0
    # vLLM says a dozen lines about itself at start-up, and reads this when it is imported.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\.")
    from agentgym.cli._inputs import fresh_folder
    from agentgym.train.versions import require_training_stack

    require_training_stack()
    from agentgym.errors import ConfigError
    from agentgym.rollout.source import EnvSource
    from agentgym.train.config_reading import load_config
    from agentgym.train.files import CONFIG_FILE

    if args.resume and args.out is None:
        raise ConfigError("--resume needs --out, the folder of the run to continue")
    if args.out is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("several processes train into one folder; name it with --out")
    config_file = args.config
    if args.resume and config_file is None and args.out is not None:
        config_file = args.out / CONFIG_FILE
        if not config_file.exists():
            raise ConfigError(f"{args.out} has no run to resume; start one without --resume")
    config = load_config(
        config_file,
        # A run to resume has a folder, which must be named.
        defaults={} if args.resume else {"out": fresh_folder("train")},
        settings=args.settings,
        env=args.env,
        model=args.model,
        out=args.out,
        **{
            "policy.servers": args.policy_servers,
            "policy.sync": args.sync,
            "policy.sync_folder": args.sync_folder,
            "policy.service": args.service,
        },
    )
    if args.print_server_command:
        from agentgym.train.served_setup import command_for_servers

        print(command_for_servers(config))
        return 0
    if args.merge and config.lora is None:
        raise ConfigError("--merge is for runs with lora, such as --set lora.rank=32")
    EnvSource(config.env, config.env_kwargs)  # before the model, which may take a download
    from agentgym.train.grpo import fit, make_trainer
    from agentgym.train.run_folder import claim

    checkpoint = claim(config, resume=args.resume)
    trainer = make_trainer(config)
    first = trainer.accelerator.is_main_process
    if first:
        print(f"traces, metrics and checkpoints: {config.out}", flush=True)
    try:
        result = fit(trainer, config, checkpoint=checkpoint, progress=not args.quiet)
    finally:
        trainer.rollout_func.close()
    if first:
        print(
            f"trained {result.steps} steps; {'adapter' if config.lora else 'model'}: {result.model}"
        )
    if first and args.merge:
        from agentgym.train.lora import MERGED_FOLDER, merge_adapter

        print(f"merged model: {merge_adapter(result.model, config.out / MERGED_FOLDER)}")
    return 0
