"""An issue tracker: projects, members of teams, issues that block each other."""

import random
from collections.abc import Mapping
from typing import Any

from agentgym.envs.toolworld import answers
from agentgym.envs.toolworld.names import people
from agentgym.envs.toolworld.templates import (
    Catalogue,
    Posed,
    Script,
    Template,
    field_of,
    keys,
    only_extreme,
    pick,
    rows_of,
)
from agentgym.errors import ToolError
from agentgym.simulators.actions import Create, Find, Get, Update
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import COUNT, TEXT, Entity, Records, Row, State, one_of

_TEAMS = ("backend", "docs", "frontend")
_STATUSES = ("todo", "doing", "review", "done")
_PROJECTS = ("Beacon", "Harrier", "Quartz", "Tundra")
_VERBS = ["Cache", "Drop", "Encrypt", "Index", "Paginate", "Rename", "Stream", "Throttle"]
_OBJECTS = ("audit events", "avatars", "invoices", "login pages", "search hits", "webhooks")

PROJECT = Entity(
    name="project", key="project_id", prefix="pj", fields={"name": one_of(*_PROJECTS), "lead": TEXT}
)
MEMBER = Entity(
    name="member",
    key="member_id",
    prefix="mb",
    fields={"name": TEXT, "team": one_of(*_TEAMS)},
)
ISSUE = Entity(
    name="issue",
    key="issue_id",
    prefix="is",
    fields={
        "title": TEXT,
        "project_id": TEXT,
        "assignee": TEXT,
        "points": COUNT,
        "status": one_of(*_STATUSES),
        "blocked_by": {
            "type": ["string", "null"],
            "description": "issue_id of what must be done before, or null",
        },
    },
    refers={"project_id": "project", "assignee": "member", "blocked_by": "issue"},
    moves={
        "status": {
            "todo": ("doing",),
            "doing": ("review", "todo"),
            "review": ("done", "doing"),
            "done": (),
        }
    },
)


def populate(rng: random.Random) -> dict[str, list[Row]]:
    """Four projects and some forty issues, with chains of blockers."""
    names = people(rng, 12)
    members = [
        {"member_id": key, "name": name, "team": _TEAMS[position % 3]}
        for position, (key, name) in enumerate(zip(keys(rng, "mb", 12), names, strict=True))
    ]
    projects = [
        {"project_id": key, "name": name, "lead": rng.choice(members)["member_id"]}
        for key, name in zip(keys(rng, "pj", 4), _PROJECTS, strict=True)
    ]
    titles = [f"{verb} {thing}" for verb in _VERBS for thing in _OBJECTS]
    issues: list[Row] = []
    for key, title in zip(keys(rng, "is", 40), rng.sample(titles, 40), strict=True):
        blockers = [issue for issue in issues if issue["status"] != "done"]
        blocked = bool(blockers) and rng.random() < 0.5
        status = rng.choice(_STATUSES[:1] if blocked else _STATUSES)
        issues.append(
            {
                "issue_id": key,
                "title": title,
                "points": rng.choice((1, 2, 3, 5, 8)),
                "project_id": rng.choice(projects)["project_id"],
                "status": status,
                "assignee": rng.choice(members)["member_id"],
                "blocked_by": rng.choice(blockers)["issue_id"] if blocked else None,
            }
        )
    rng.shuffle(issues)
    return {"project": projects, "member": members, "issue": issues}


def _not_blocked(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    if row["blocked_by"] is None or arguments["status"] == "todo":
        return
    if records.get("issue", row["blocked_by"])["status"] != "done":
        raise ToolError(_is_blocked(row))


def _is_blocked(issue: Row) -> str:
    return (
        f"Error: issue {issue['issue_id']} is blocked by {issue['blocked_by']}, which isn't done."
    )


DOMAIN = Domain(
    name="tracker",
    background="An issue tracker. An issue goes from todo to doing to review to done, and not "
    "beyond todo while the issue that blocks it isn't done.",
    entities=(PROJECT, MEMBER, ISSUE),
    actions=(
        Find(
            name="find_projects",
            description="Find projects by name.",
            entity="project",
            where={"name": "name"},
        ),
        Find(
            name="find_members",
            description="Find members by name or team.",
            entity="member",
            where={"name": ("name", "contains"), "team": "team"},
        ),
        Get(name="get_member", description="Name and team of one member.", entity="member"),
        Find(
            name="search_issues",
            description="Search issues by project, assignee, status or words of the title.",
            entity="issue",
            where={
                "project_id": "project_id",
                "assignee": "assignee",
                "status": "status",
                "title": ("title", "contains"),
            },
            shows=("title", "status"),
        ),
        Get(name="get_issue", description="Everything about one issue.", entity="issue"),
        Create(
            name="create_issue",
            description="Open an issue.",
            entity="issue",
            takes=("title", "project_id", "assignee", "points"),
            sets={"status": "todo", "blocked_by": None},
        ),
        Update(
            name="assign_issue",
            description="Give an issue to another member.",
            entity="issue",
            takes=("assignee",),
            when={"status": _STATUSES[:3]},
        ),
        Update(
            name="move_issue",
            description="Set an issue's status, one step at a time.",
            entity="issue",
            takes=("status",),
            check=_not_blocked,
        ),
    ),
    populate=populate,
)


class PointsInWork(Template):
    """What somebody has in work in one project."""

    name = "points_in_work"
    split = "train"
    prompts = (
        (
            "How many points in total do the issues of the project {project} have that are in the "
            "status {status}?"
        ),
        "Add up the points of all {status} issues of the project {project}.",
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A project with two to four such issues."""
        project, status = rng.choice(rows_of(state, "project")), rng.choice(_STATUSES)
        issues = rows_of(state, "issue", project_id=project["project_id"], status=status)
        if not 2 <= len(issues) <= 4:
            return None
        return Posed(
            slots={"project": project["name"], "status": status},
            answer=answers.number(sum(issue["points"] for issue in issues)),
            evidence=[(issue["issue_id"], "points") for issue in issues],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Project, issues, each one's points."""
        found = yield "find_projects", {"name": slots["project"]}
        which = {"project_id": found["projects"][0]["project_id"], "status": slots["status"]}
        listed = yield "search_issues", which
        points = 0
        for entry in listed["issues"]:
            issue = yield "get_issue", {"issue_id": entry["issue_id"]}
            points += issue["points"]
        return str(points)


class RootBlocker(Template):
    """The end of a chain of blockers."""

    name = "root_blocker"
    split = "train"
    prompts = (
        (
            "The issue “{title}” waits for another, which may wait for another, and so on. Who is "
            "assigned to the issue at the end of that chain, which waits for nothing? Answer with "
            "the full name."
        ),
        (
            "Follow what blocks the issue “{title}” down to the issue that nothing blocks. Answer "
            "with the full name of its assignee."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A chain of at least two blockers."""
        issue = rng.choice(rows_of(state, "issue"))
        chain = [issue]
        while chain[-1]["blocked_by"]:
            chain.append(state["issue"][chain[-1]["blocked_by"]])
        if not 3 <= len(chain) <= 5:
            return None
        assignee = state["member"][chain[-1]["assignee"]]
        return Posed(
            slots={"title": issue["title"]},
            answer=answers.name(assignee["name"], field_of(state, "member", "name")),
            evidence=[
                *((each["issue_id"], "blocked_by") for each in chain),
                assignee["member_id"],
            ],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Issue after issue, then the member."""
        found = yield "search_issues", {"title": slots["title"]}
        key = found["issues"][0]["issue_id"]
        while True:
            issue = yield "get_issue", {"issue_id": key}
            if issue["blocked_by"] is None:
                break
            key = issue["blocked_by"]
        member = yield "get_member", {"member_id": issue["assignee"]}
        return str(member["name"])


class AssignLeastBusy(Template):
    """An issue for whoever of a team has least to do."""

    name = "assign_least_busy"
    split = "train"
    prompts = (
        (
            "Assign the issue “{title}” to the member of the {team} team with the fewest issues in"
            " the status todo, and answer with that member's full name."
        ),
        (
            "Who of the {team} team has the fewest todo issues? Make them the assignee of "
            "“{title}” and answer with their full name."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """One member of the team has least, and the issue is somebody else's."""
        issue, team = rng.choice(rows_of(state, "issue")), rng.choice(_TEAMS)
        members = rows_of(state, "member", team=team)
        counted = [
            {**m, "todo": len(rows_of(state, "issue", assignee=m["member_id"], status="todo"))}
            for m in members
        ]
        least = only_extreme(counted, "todo")
        if least is None or issue["status"] == "done" or issue["assignee"] == least["member_id"]:
            return None
        write = {"issue_id": issue["issue_id"], "assignee": least["member_id"]}
        return Posed(
            slots={"title": issue["title"], "team": team},
            answer=answers.name(least["name"], field_of(state, "member", "name")),
            evidence=[issue["issue_id"], *((member["member_id"], "issues") for member in members)],
            writes=[("assign_issue", write)],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Issue, members, each one's load, one write."""
        found = yield "search_issues", {"title": slots["title"]}
        listed = yield "find_members", {"team": slots["team"]}
        loads = []
        for member in listed["members"]:
            which = {"assignee": member["member_id"], "status": "todo"}
            issues = yield "search_issues", which
            loads.append((issues["total"], member["member_id"], member["name"]))
        _, member_id, name = min(loads)
        issue_id = found["issues"][0]["issue_id"]
        yield "assign_issue", {"issue_id": issue_id, "assignee": member_id}
        return str(name)


class StartIfFree(Template):
    """An issue goes into work unless something blocks it."""

    name = "start_if_free"
    none_share = 0.4
    split = "validation"
    prompts = (
        (
            "Move the issue “{title}” from todo to review, through doing, if nothing unfinished "
            "blocks it, and answer with its points. If it is blocked, leave it and answer none."
        ),
        (
            "The work on “{title}” is said to be finished: take it from todo via doing to review "
            "and answer with its points, unless an unfinished issue blocks it; then change nothing"
            " and answer none."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """Any todo issue."""
        issue = pick(rng, rows_of(state, "issue", status="todo"))
        if issue is None:
            return None
        free = issue["blocked_by"] is None
        return Posed(
            slots={"title": issue["title"]},
            answer=answers.number(issue["points"]) if free else answers.no_number(),
            evidence=[
                {(issue["issue_id"], issue["blocked_by"] or "blocked_by"), _is_blocked(issue)}
            ],
            writes=[
                ("move_issue", {"issue_id": issue["issue_id"], "status": status})
                for status in ("doing", "review")
            ]
            if free
            else (),
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Issue, its blocker if any, two moves."""
        found = yield "search_issues", {"title": slots["title"]}
        issue = yield "get_issue", {"issue_id": found["issues"][0]["issue_id"]}
        if issue["blocked_by"] is not None:
            blocker = yield "get_issue", {"issue_id": issue["blocked_by"]}
            if blocker["status"] != "done":
                return "none"
        for status in ("doing", "review"):
            yield "move_issue", {"issue_id": issue["issue_id"], "status": status}
        return str(issue["points"])


CATALOGUE = Catalogue(DOMAIN, (PointsInWork(), RootBlocker(), AssignLeastBusy(), StartIfFree()))
