from __future__ import annotations

import importlib.util
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from agentgym.cli import main
from agentgym.errors import ConfigError
from agentgym.testing.envs import CounterEnv
from agentgym.train.config import TrainConfig
from agentgym.train.config_reading import (
    MOVED,
    field_names,
    load_config,
    read_config,
    table_of,
)
from agentgym.train.files import CONFIG_FILE
from agentgym.train.grpo_table import FIXED, OWNED, check_value
from agentgym.train.lora import LoraSettings

BASE = {"env": "agentgym/WebShop-v0", "model": "m", "out": "runs/x"}


def write(folder: Path, text: str) -> Path:
    path = folder / "train.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_file_settings_and_fields_apply_in_that_order(tmp_path: Path) -> None:
    path = write(tmp_path, 'env = "a"\nmodel = "m"\nout = "o"\nsteps = 5\n[grpo]\nbeta = 0.1\n')
    config = load_config(
        path, settings=["steps=7", "grpo.loss_type=grpo", "env_kwargs.max_turns=4"], env="b"
    )
    assert (config.env, config.steps) == ("b", 7)
    assert config.grpo == {"beta": 0.1, "loss_type": "grpo"}
    assert config.env_kwargs == {"max_turns": 4}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 3}, "did you mean 'steps'"),
        ({"steps": 0}, "steps: .*greater than or equal to 1, got 0"),
        ({"group_size": 1}, "group_size: one episode alone .*: at least 2"),
        ({"grpo": {"num_generations": 4}}, "set by the field 'group_size'"),
        ({"grpo": {"top_p": 0.9}}, "can't be set"),
        ({"grpo": {"mask_truncated_completions": True}}, "the field 'objective.truncated'"),
        ({"grpo": {"max_completion_length": 512}}, "'sampling.max_turn_tokens' caps a turn"),
        ({"grpo": {"save_strategy": "no"}}, "the field 'keep.checkpoints_every'"),
        ({"grpo": {"steps_per_generation": 3}}, "set by the field 'tasks_per_step'"),
        ({"grpo": {"reward_weights": [2.0]}}, "there is one reward"),
        # The mean of five steps' tokens would be counted as those of the five.
        ({"grpo": {"logging_steps": 5}}, "logging_steps can't be set: every step is logged"),
        ({"grpo": {"eval_strategy": "steps"}}, "set by the field 'eval.every'"),
        ({"grpo": {"resume_from_checkpoint": "x"}}, "--resume continues"),
        ({"objective.truncated": "msk"}, "truncated: unknown choice 'msk'; did you mean 'mask'"),
        (
            {"objective.truncated.turn": "mask"},
            "truncated: unknown limit 'turn'; did you mean 'turns'",
        ),
        ({"stop_on": "nosignal"}, "stop_on: unknown alarm 'nosignal'; did you mean 'no_signal'.$"),
        ({"learning_rate": float("inf")}, "learning_rate: must be finite, got inf$"),
    ],
)
def test_bad_value_is_one_line_with_the_remedy(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_config({**BASE, **values})
    assert "\n" not in str(caught.value)


SERVED = {"policy.servers": ["http://gpu1:8000"], "policy.sync_folder": "/shared"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"policy.servers": ["http://gpu1:8000"]},
            "config: policy: sync=.folder. needs .* servers share$",
        ),
        ({**SERVED, "policy.sync": "lora"}, "lora.rank"),
        ({**SERVED, "policy.sync": "ncl"}, "'folder', 'lora' or 'nccl'"),
        ({"policy.service": "http://rollouts:8800"}, "--policy-server"),
        ({"policy.sync_folder": "/shared"}, "--policy-server"),
        ({**SERVED, "grpo": {"vllm_mode": "server"}}, "policy.servers"),
    ],
)
def test_servers_without_a_way_to_get_weights_are_refused(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_config({**BASE, **values})
    assert "\n" not in str(caught.value)


def test_one_server_may_be_given_as_text(tmp_path: Path) -> None:
    config = load_config(
        None, settings=["policy.servers=http://gpu1:8000", "policy.sync=nccl"], **BASE
    )
    assert config.policy.servers == ("http://gpu1:8000",)


def test_missing_field_is_named() -> None:
    with pytest.raises(ConfigError, match="model: is missing"):
        read_config({"env": "a", "out": "o"})


def test_bad_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(write(tmp_path, "steps = = 3"))


def test_defaults_give_way_to_everything(tmp_path: Path) -> None:
    file = write(tmp_path, 'env = "e/E-v0"\nmodel = "m"\nsteps = 3')
    config = load_config(file, defaults={"out": tmp_path, "steps": 9})
    assert (config.out, config.steps) == (tmp_path, 3)


def test_the_record_of_a_run_is_a_config(tmp_path: Path) -> None:
    config = read_config({"env": "e/E-v0", "model": "m", "out": tmp_path, "grpo": {"beta": 0.1}})
    record = tmp_path / CONFIG_FILE
    record.write_text(config.model_dump_json(), encoding="utf-8")
    assert load_config(record) == config
    record.write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigError, match="must hold one JSON object"):
        load_config(record)
    record.write_text('{"env": ', encoding="utf-8")
    with pytest.raises(ConfigError, match="is not valid JSON"):
        load_config(record)


def test_setting_without_a_value_is_refused() -> None:
    for setting in ("steps", "=3", "grpo.=3"):
        with pytest.raises(ConfigError, match="key=value"):
            load_config(None, settings=[setting])
    with pytest.raises(ConfigError, match="not a table"):
        load_config(None, settings=["env=x", "env.y=1"])
    with pytest.raises(ConfigError, match="--set stepz=3: unknown field 'stepz'; did you mean"):
        load_config(None, settings=["stepz=3"])


def test_episodes_are_dealt_out_evenly() -> None:
    config = TrainConfig(**BASE, tasks_per_step=6, group_size=4, micro_batch=8)
    assert config.episodes_per_step == 24
    assert config.accumulation_steps(1) == 3
    with pytest.raises(ConfigError, match="micro_batch that divides them, such as 6$"):
        config.accumulation_steps(2)
    uneven = ["tasks_per_step=6", "group_size=4", "micro_batch=5"]
    with pytest.raises(ConfigError, match="24 episodes .* micro batches of 5; .* such as 4$"):
        load_config(None, settings=uneven, **BASE)


def test_roles_give_the_environment_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grpo = pytest.importorskip("agentgym.train.grpo")

    class Desk(CounterEnv):
        def __init__(self, simulator: object = None) -> None:
            super().__init__()

    spec = EnvSpec("TrainDesk-v0", entry_point=Desk)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    endpoint = 'base_url = "https://h.example/v1"\nmodel = "m"\napi_key_env = "KEY_OF_TEST"\n'
    roles = tmp_path / "roles.toml"
    roles.write_text(f"[policy]\n{endpoint}[simulator]\n{endpoint}[judge]\n{endpoint}")
    config = read_config({**BASE, "env": spec.id, "roles": str(roles)})
    with pytest.raises(ConfigError, match="the simulator 'm' .*KEY_OF_TEST is not set"):
        grpo.training_kwargs(config)
    monkeypatch.setenv("KEY_OF_TEST", "k")
    env_kwargs = grpo.training_kwargs(config)
    assert list(env_kwargs) == ["simulator"]
    assert env_kwargs["simulator"].role == "simulator"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("beta", -1.0, "beta is at least 0, got -1.0"),
        ("beta", float("nan"), "beta is at least 0, got nan"),
        ("adam_beta1", float("nan"), "adam_beta1 is a number, got nan"),
        ("num_iterations", 0, "num_iterations is at least 1"),
        ("top_entropy_quantile", 2.0, "top_entropy_quantile is from 0 to 1"),
        ("scale_rewards", "batches", "scale_rewards is one of group, batch, none, got 'batches'"),
        ("loss_type", "ppo", "loss_type is one of grpo"),
    ],
)
def test_values_that_would_fail_in_the_first_step_are_refused(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_value(name, value)


def test_settings_that_a_run_makes_itself_cannot_be_set_beside_it() -> None:
    """Else the table would name them in vain."""
    args = pytest.importorskip("agentgym.train.grpo_args")
    ours = args.settled_by_the_run(read_config(BASE), processes=1)
    assert not ours.keys() - OWNED.keys() - FIXED.keys()


@pytest.mark.filterwarnings("default")  # torch's own
@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"use_liger_kernel": True}, "pip install liger-kernel"),
        ({"deepspeed": "none.json"}, "deepspeed"),
        ({"zzzz": 1}, "unknown field 'zzzz'; trl.GRPOConfig's documentation"),
    ],
)
def test_table_that_needs_what_is_not_installed_is_one_line(
    table: dict[str, object], message: str
) -> None:
    args = pytest.importorskip("agentgym.train.grpo_args")
    for package in ("trl", "torch"):
        pytest.importorskip(package)
    for name in ("liger_kernel", "deepspeed"):
        if importlib.util.find_spec(name):
            pytest.skip(f"{name} is installed")
    with pytest.raises(ConfigError, match=message) as caught:
        args.grpo_config(read_config({**BASE, "grpo": table}))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("default")  # torch's own
def test_one_more_setting_of_the_model_leaves_its_dtype_on_a_cpu() -> None:
    args = pytest.importorskip("agentgym.train.grpo_args")
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    table = {"model_init_kwargs": {"attn_implementation": "eager"}}
    made = args.grpo_config(read_config({**BASE, "grpo": table}))
    assert made.model_init_kwargs == {"dtype": "float32", "attn_implementation": "eager"}


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lora.rnk=4", "unknown field 'lora.rnk'; did you mean 'lora.rank'"),
        ("eval.evry=4", "unknown field 'eval.evry'; did you mean 'eval.every'"),
        ("eval.zzz=4", r"unknown field 'eval.zzz'; \[eval\] has every, tasks, samples, "),
        ("monitors.windw=4", "unknown field 'monitors.windw'; did you mean 'monitors.window'"),
        ("eval=4", r"eval is a table, \[eval\], of every, tasks, samples, env_kwargs; got 4"),
        ("eval.every=0", "eval.every: .*greater than or equal to 1, got 0"),
        ("eval.every=often", "eval.every: .*valid integer.*, got 'often'"),
        ("grpo.num_generations=4", "grpo: num_generations is set by the field 'group_size'"),
        ("policy.sync_folder=/s", "policy: sync_folder is for a policy on servers"),
        ("steps.x=1", "unknown|not a table|steps: "),
    ],
)
def test_an_error_in_a_setting_names_the_setting_and_not_the_file(
    tmp_path: Path, setting: str, message: str
) -> None:
    path = write(tmp_path, 'env = "a"\nmodel = "m"\nout = "o"\n')
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path, settings=["seed=1", setting])
    assert str(caught.value).startswith(f"--set {setting}: ")
    assert str(path) not in str(caught.value)


def test_an_error_in_the_file_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'env = "a"\nmodel = "m"\nout = "o"\n[eval]\ntasks = 1\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path, settings=["eval.every=4"])
    assert str(caught.value).startswith(f"{path}: eval.tasks: ")


def test_errors_from_file_and_setting_are_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path, 'env = "a"\nmodel = "m"\nout = "o"\nsteps = 0\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path, settings=["seed=-1"])
    assert f"{path}: steps: " in str(caught.value)
    assert "--set seed=-1: seed: " in str(caught.value)


@pytest.mark.parametrize("name", MOVED)
def test_a_name_from_before_the_tables_is_refused_with_its_new_one(
    tmp_path: Path, name: str
) -> None:
    message = f"{name!r} is now {MOVED[name]!r}$"
    with pytest.raises(ConfigError, match=f"^--set {name}=1: {message}"):
        load_config(None, settings=[f"{name}=1"])
    path = write(tmp_path, f"{name} = 1\n")
    with pytest.raises(ConfigError, match=message):
        load_config(path)
    assert MOVED[name] in set(field_names())


def test_a_field_in_a_table_may_be_written_with_a_dot() -> None:
    dotted = read_config(
        {**BASE, "eval.every": 2, "lora.rank": 4, "objective.truncated.turns": "mask"}
    )
    nested = {
        "eval": {"every": 2},
        "lora": {"rank": 4},
        "objective": {"truncated": {"turns": "mask"}},
    }
    assert dotted == read_config({**BASE, **nested})


def test_a_setting_reaches_into_a_table_that_the_record_of_a_run_has_as_null(
    tmp_path: Path,
) -> None:
    record = tmp_path / CONFIG_FILE
    record.write_text(read_config(BASE).model_dump_json(), encoding="utf-8")
    assert load_config(record, settings=["lora.rank=8"]).lora == LoraSettings(rank=8)


def test_what_is_given_is_not_changed() -> None:
    values = {**BASE, "eval": {"tasks": 3}}
    read_config({**values, "eval.every": 2})
    assert values["eval"] == {"tasks": 3}


def test_help_lists_every_field_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--set", "help"]) == 0
    text = capsys.readouterr().out
    for name in field_names():
        assert f"  {name} " in text
    assert "env must be given  (text)" in text
    assert 'policy.sync = "folder"  ("folder", "lora", "nccl")' in text
    assert "Steps between evaluations" in text
    assert "Annotated" not in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_every_table_has_a_dozen_fields_or_so() -> None:
    tables = [table for name in TrainConfig.model_fields if (table := table_of(name))]
    assert len(tables) == 8
    assert max(len(table.model_fields) for table in tables) <= 13
    plain = [name for name in TrainConfig.model_fields if table_of(name) is None]
    assert len(plain) <= 13


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("budget.dolars=3", "unknown field 'budget.dolars'; [budget] has usd, tokens, roles"),
        ("monitors.foo=1", "unknown field 'monitors.foo'; [monitors] has "),
        ("policy.temperature=1", "unknown field 'policy.temperature'; did you mean 'sampling.temp"),
        ("steps=true", "steps is a number, got True"),
        ("learning_rate=true", "learning_rate is a number, got True"),
        ("eval.every=true", "eval.every is a number, got True"),
        ("sampling.temperature=false", "sampling.temperature is a number, got False"),
    ],
)
def test_a_setting_that_is_not_meant_is_refused_with_what_is(setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(None, settings=[setting], env="e/E-v0", model="m", out="runs/x")
    assert str(error.value).startswith(f"--set {setting}: {said}")


def test_what_must_be_given_names_its_option() -> None:
    with pytest.raises(ConfigError, match=r"env: is missing \(--env\); model: is missing \(--mod"):
        load_config(None, out="runs/x")


def test_what_a_flag_says_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('env = "agentgym/WebShop-v0"\nmodel = "m"\nout = "o"\n', encoding="utf-8")
    flags = {"policy.servers": ["http://h:8000"]}
    with pytest.raises(ConfigError, match="^the command line: policy: .* needs sync_folder"):
        load_config(file, **flags)
