"""Recordings of the original WebShop, and a catalogue small enough to read."""

import gzip
import json
import os
from pathlib import Path

import pytest

from agentgym.envs.webshop.env import WebShopEnv
from agentgym.envs.webshop.files import read_folder
from agentgym.envs.webshop.products import build_catalogue

DATA = Path(__file__).parent / "data"
REPOSITORY = Path(__file__).parents[3]
SCRAPED_FILE = "data/items_shuffle_1000.json"


@pytest.fixture(scope="session")
def recordings():
    """Folder of the committed recordings."""
    return DATA


@pytest.fixture(scope="session")
def synth():
    """Folder with the made-up data set the recordings were made on."""
    return DATA / "synth"


@pytest.fixture(scope="session")
def nouns_file():
    """The nouns the original's language model found in the made-up names."""
    return DATA / "nouns.json"


@pytest.fixture(scope="session")
def catalogue(synth):
    """The made-up catalogue."""
    return build_catalogue(read_folder(synth))


@pytest.fixture(scope="session")
def load():
    """Read a committed JSON, JSON-lines or gzipped recording."""

    def read(name):
        path = DATA / name
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else None
        text = path.read_text(encoding="utf-8") if text is None else text
        if ".jsonl" in name:
            return [json.loads(line) for line in text.splitlines()]
        return json.loads(text)

    return read


@pytest.fixture(scope="session")
def make_env(synth, nouns_file):
    """Make the environment as the original was when it was recorded, changed by keywords."""

    def make(**changes):
        parameters = {
            "data": synth,
            "data_seed": 0,
            "invalid_action": "silent",
            "gates": (),
            "nouns": nouns_file,
        }
        return WebShopEnv(**{**parameters, **changes})

    return make


@pytest.fixture(scope="session")
def scraped():
    """Folder with WebShop's own 1,000 products in ``data`` and recordings on them in ``golden``.

    Their texts were scraped from shop pages and are not ours to ship. The folder is named by
    AGENTGYM_WEBSHOP_DATA or found beside the checkout.
    """
    named = os.environ.get("AGENTGYM_WEBSHOP_DATA")
    if named:
        candidates = [Path(named)]
    else:
        found = REPOSITORY.parent.glob(f"*/webshop/{SCRAPED_FILE}")
        candidates = [path.parents[1] for path in found]
    for folder in candidates:
        if (folder / SCRAPED_FILE).is_file():
            return folder
    pytest.skip("WebShop's scraped products are not here; set AGENTGYM_WEBSHOP_DATA to use them")


@pytest.fixture(scope="session")
def play():
    """Play one episode with a policy; the score before gates."""

    def run(env, policy, task_id=None, *, transcript=None):
        obs, info = env.reset(options={"task_id": task_id} if task_id else None)
        messages = list(obs)
        over = False
        while not over:
            action = policy(messages, info)
            obs, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            said = {"role": "assistant", "content": action} if isinstance(action, str) else action
            messages += [said, *obs]
        if transcript is not None:
            transcript.extend(messages)
        return info["verdict"].components["task_score"]

    return run


@pytest.fixture
def raw_product():
    """One product as the product file has it."""
    return {
        "asin": "B000000001",
        "name": "Red Shoe",
        "full_description": "A shoe.",
        "small_description": ["soft", "light"],
        "pricing": "$12.50",
        "customization_options": {"Size": [{"value": " 7/8 "}, {"value": "9"}], "Color": None},
        "images": ["i.jpg"],
        "product_category": "Shoes › Men",
        "category": "fashion",
        "query": " Shoes ",
    }
