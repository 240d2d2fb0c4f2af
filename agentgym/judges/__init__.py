"""Judges: models and programs that say what an episode was worth.

A judge takes a model client and never makes one. What it says of an episode is a `Score`; what
becomes of that, gates and failures included, is `agentgym.judge.Scoring`'s business.
"""

from agentgym.gates import custom_gate, forbidden_tool, over_token_budget
from agentgym.judges.attack import Target, attack_suite, run_attacks
from agentgym.judges.compose import Weighted, compose
from agentgym.judges.gold import GoldCase, GoldSet
from agentgym.judges.group import GroupRubricJudge
from agentgym.judges.health import HealthReport, Thresholds, check_judge
from agentgym.judges.panel import Panel
from agentgym.judges.parsing import Reading, read_verdict
from agentgym.judges.prompt import judge_messages
from agentgym.judges.rescore import episode_of, rescore
from agentgym.judges.rubric import DEFAULT_RUBRIC, RELATIVE_RUBRIC, Criterion, Rubric
from agentgym.judges.rubric_judge import RubricJudge
from agentgym.judges.transcript import BEGIN, END, TranscriptLimits, render_transcript
from agentgym.judges.verifier import Verifier

__all__ = [
    "BEGIN",
    "DEFAULT_RUBRIC",
    "END",
    "RELATIVE_RUBRIC",
    "Criterion",
    "GoldCase",
    "GoldSet",
    "GroupRubricJudge",
    "HealthReport",
    "Panel",
    "Reading",
    "Rubric",
    "RubricJudge",
    "Target",
    "Thresholds",
    "TranscriptLimits",
    "Verifier",
    "Weighted",
    "attack_suite",
    "check_judge",
    "compose",
    "custom_gate",
    "episode_of",
    "forbidden_tool",
    "judge_messages",
    "over_token_budget",
    "read_verdict",
    "render_transcript",
    "rescore",
    "run_attacks",
]
