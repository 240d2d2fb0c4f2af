"""A lending library: books, readers in tiers, loans and holds."""

import random
from collections.abc import Mapping
from datetime import date as day
from typing import Any

from agentgym.envs.toolworld import answers
from agentgym.envs.toolworld.names import dates, people
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
from agentgym.simulators.actions import Create, Delete, Find, Get, Update
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import (
    AMOUNT,
    COUNT,
    DATE,
    TEXT,
    Entity,
    Records,
    Row,
    State,
    one_of,
)

_GENRES = ("crime", "history", "poetry", "science", "travel")
_ADJECTIVES = ["Silent", "Crimson", "Hollow", "Distant", "Gilded", "Broken", "Winter", "Paper"]
_NOUNS = ["Harbour", "Garden", "Orchard", "Lantern", "Meridian", "Staircase", "Archive", "River"]
_TIERS = ("standard", "student", "premium")
_TODAY = "2026-05-20"

BOOK = Entity(
    name="book",
    key="book_id",
    prefix="bk",
    fields={
        "title": TEXT,
        "author": TEXT,
        "genre": one_of(*_GENRES),
        "year": COUNT,
        "shelf": TEXT,
        "copies": {**COUNT, "description": "Copies on the shelf now"},
    },
)
READER = Entity(
    name="reader",
    key="reader_id",
    prefix="rd",
    fields={"name": TEXT, "tier": one_of(*_TIERS), "joined": DATE},
)
TIER = Entity(
    name="tier",
    key="tier",
    prefix="tier",
    fields={"late_fee_per_day": AMOUNT, "most_loans": COUNT},
)
LOAN = Entity(
    name="loan",
    key="loan_id",
    prefix="ln",
    fields={
        "book_id": TEXT,
        "reader_id": TEXT,
        "due": DATE,
        "status": one_of("open", "returned"),
    },
    refers={"book_id": "book", "reader_id": "reader"},
)
HOLD = Entity(
    name="hold",
    key="hold_id",
    prefix="hd",
    fields={"book_id": TEXT, "reader_id": TEXT},
    refers={"book_id": "book", "reader_id": "reader"},
)


def populate(rng: random.Random) -> dict[str, list[Row]]:
    """A few dozen books and loans."""
    authors = people(rng, 10)
    titles = [f"The {a} {n}" for a in _ADJECTIVES for n in _NOUNS]
    books = [
        {
            "book_id": key,
            "title": title,
            "author": rng.choice(authors[:8]),
            "genre": rng.choice(_GENRES[:3]),
            "year": rng.randrange(1950, 2024),
            "shelf": f"{rng.choice('ABCDEF')}{rng.randrange(10, 99)}",
            "copies": rng.choice((0, 1, 2, 3)),
        }
        for key, title in zip(keys(rng, "bk", 32), rng.sample(titles, 32), strict=True)
    ]
    readers = [
        {"reader_id": key, "name": name, "tier": rng.choice(_TIERS), "joined": joined}
        for key, name, joined in zip(
            keys(rng, "rd", 10), people(rng, 10), dates(rng, 10, month=1), strict=True
        )
    ]
    days = dates(rng, 20)
    loans = [
        {
            "loan_id": key,
            "book_id": rng.choice(books)["book_id"],
            "reader_id": rng.choice(readers)["reader_id"],
            "due": rng.choice(days),
            "status": rng.choice(("open", "open", "returned")),
        }
        for key in keys(rng, "ln", 36)
    ]
    holds = [
        {"hold_id": key, "book_id": book["book_id"], "reader_id": rng.choice(readers)["reader_id"]}
        for key, book in zip(keys(rng, "hd", 6), rng.sample(books, 6), strict=True)
    ]
    fees = dict(zip(_TIERS, rng.sample((0.2, 0.25, 0.35, 0.4, 0.5, 0.75), 3), strict=True))
    tiers = [{"tier": tier, "late_fee_per_day": fees[tier], "most_loans": 12} for tier in _TIERS]
    return {"book": books, "reader": readers, "loan": loans, "hold": holds, "tier": tiers}


def _may_borrow(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    if records.get("book", arguments["book_id"])["copies"] < 1:
        raise ToolError(f"Error: no copy of book {arguments['book_id']} is on the shelf.")
    reader = records.get("reader", arguments["reader_id"])
    most = records.get("tier", reader["tier"])["most_loans"]
    held = [
        loan
        for loan in records.all("loan")
        if loan["reader_id"] == reader["reader_id"] and loan["status"] == "open"
    ]
    if len(held) >= most:
        raise ToolError(f"Error: reader {reader['reader_id']} already has {most} open loans.")


def _take_copy(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    records.get("book", row["book_id"])["copies"] -= 1


def _put_copy_back(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    records.get("book", row["book_id"])["copies"] += 1


DOMAIN = Domain(
    name="library",
    background="The desk of a lending library. Readers belong to a tier, which sets the fee for "
    "every day that an open loan is overdue. Checking out takes a copy off the shelf.",
    entities=(BOOK, READER, TIER, LOAN, HOLD),
    actions=(
        Find(
            name="search_books",
            description="Search the catalogue by title, author or genre.",
            entity="book",
            where={"title": ("title", "contains"), "author": "author", "genre": "genre"},
            shows=("title", "author"),
        ),
        Get(name="get_book", description="Everything about one book.", entity="book"),
        Find(
            name="find_readers",
            description="Find readers by name.",
            entity="reader",
            where={"name": ("name", "contains")},
            required=("name",),
            shows=("name",),
        ),
        Get(name="get_reader", description="Everything about one reader.", entity="reader"),
        Get(name="get_tier", description="Fees and limits of a reader's tier.", entity="tier"),
        Find(
            name="list_loans",
            description="List loans of a reader or of a book, by status.",
            entity="loan",
            where={"reader_id": "reader_id", "book_id": "book_id", "status": "status"},
        ),
        Create(
            name="check_out",
            description="Lend a book to a reader until a due date.",
            entity="loan",
            takes=("book_id", "reader_id", "due"),
            sets={"status": "open"},
            check=_may_borrow,
            then=_take_copy,
        ),
        Update(
            name="return_loan",
            description="Take back the book of an open loan.",
            entity="loan",
            sets={"status": "returned"},
            when={"status": ("open",)},
            then=_put_copy_back,
        ),
        Create(
            name="place_hold",
            description="Reserve the next copy of a book for a reader.",
            entity="hold",
            takes=("book_id", "reader_id"),
        ),
        Delete(name="cancel_hold", description="Cancel a hold.", entity="hold"),
    ),
    populate=populate,
)


def _days_late(due: str) -> int:
    return (day.fromisoformat(_TODAY) - day.fromisoformat(due)).days


class LateFee(Template):
    """Sum over a reader's overdue loans, times the fee of their tier."""

    name = "late_fee"
    split = "train"
    prompts = (
        (
            "Today is {today}. What late fee does the library reader {reader} owe for all their "
            "open loans that are overdue, at the daily fee of their tier?"
        ),
        (
            "{reader} wants to settle the library's late fees today, {today}. How much is due in "
            "total for the open loans past their due date?"
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A reader with at least two overdue loans."""
        reader = rng.choice(rows_of(state, "reader"))
        loans = rows_of(state, "loan", reader_id=reader["reader_id"], status="open")
        late = [_days_late(loan["due"]) for loan in loans if loan["due"] < _TODAY]
        if len(late) < 2:
            return None
        fee = state["tier"][reader["tier"]]["late_fee_per_day"] * sum(late)
        return Posed(
            slots={"today": _TODAY, "reader": reader["name"]},
            answer=answers.number(fee),
            evidence=[*(loan["loan_id"] for loan in loans), (reader["tier"], "late_fee_per_day")],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Reader, tier, loans, sum."""
        found = yield "find_readers", {"name": slots["reader"]}
        reader = yield "get_reader", {"reader_id": found["readers"][0]["reader_id"]}
        tier = yield "get_tier", {"tier": reader["tier"]}
        which = {"reader_id": reader["reader_id"], "status": "open"}
        loans = yield "list_loans", which
        late = (_days_late(loan["due"]) for loan in loans["loans"] if loan["due"] < slots["today"])
        return f"{tier['late_fee_per_day'] * sum(late):.2f}"


class NextShelf(Template):
    """Where the book goes that a reader must bring back next."""

    name = "next_shelf"
    split = "train"
    prompts = (
        (
            "Of the books {reader} has on open loan from the library, one is due first. On which "
            "shelf does it belong?"
        ),
        (
            "Which library shelf will the book go back to that {reader} has to return first, "
            "looking at their open loans?"
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A reader with several open loans, one of them due before the others."""
        reader = rng.choice(rows_of(state, "reader"))
        loans = rows_of(state, "loan", reader_id=reader["reader_id"], status="open")
        first = only_extreme(loans, "due")
        if first is None or len(loans) < 2:
            return None
        return Posed(
            slots={"reader": reader["name"]},
            answer=answers.name(
                state["book"][first["book_id"]]["shelf"], field_of(state, "book", "shelf")
            ),
            evidence=[first["loan_id"], first["book_id"]],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Reader, loans, book."""
        found = yield "find_readers", {"name": slots["reader"]}
        which = {"reader_id": found["readers"][0]["reader_id"], "status": "open"}
        loans = yield "list_loans", which
        first = min(loans["loans"], key=lambda loan: loan["due"])
        book = yield "get_book", {"book_id": first["book_id"]}
        return str(book["shelf"])


class LendOrHold(Template):
    """A loan if there is a copy, a hold if there is none."""

    name = "lend_or_hold"
    split = "train"
    prompts = (
        (
            "If a copy of “{title}” is on the shelf, check it out to {reader} until {due}; if "
            "there is none, place a hold for them. Answer with the id of the loan or hold."
        ),
        (
            "{reader} asks the library for “{title}”. Lend it until {due} if a copy is there, "
            "otherwise put them on hold for it, and answer with the id of what you made."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """Any book and reader, with and without a copy equally often."""
        there = rng.random() < 0.5
        books = [book for book in rows_of(state, "book") if bool(book["copies"]) == there]
        book, reader = pick(rng, books), rng.choice(rows_of(state, "reader"))
        if book is None:
            return None
        due = f"2026-06-{rng.randrange(1, 28):02d}"
        both = {"book_id": book["book_id"], "reader_id": reader["reader_id"]}
        lends = book["copies"] > 0
        entity = "loan" if lends else "hold"
        new = max(int(key[2:]) for key in state[entity]) + 1
        return Posed(
            slots={"title": book["title"], "reader": reader["name"], "due": due},
            answer=answers.name(
                f"{'ln' if lends else 'hd'}{new}", [*state["loan"], *state["hold"]]
            ),
            evidence=[book["book_id"], reader["reader_id"]],
            writes=[("check_out", {**both, "due": due}) if lends else ("place_hold", both)],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Book, reader, then one write."""
        books = yield "search_books", {"title": slots["title"]}
        book = yield "get_book", {"book_id": books["books"][0]["book_id"]}
        readers = yield "find_readers", {"name": slots["reader"]}
        both = {"book_id": book["book_id"], "reader_id": readers["readers"][0]["reader_id"]}
        if book["copies"] > 0:
            loan = yield "check_out", {**both, "due": slots["due"]}
            return str(loan["loan_id"])
        hold = yield "place_hold", both
        return str(hold["hold_id"])


class OldestByAuthor(Template):
    """The oldest book of an author that is on the shelf, or none."""

    name = "oldest_by_author"
    none_share = 0.25
    split = "test"
    prompts = (
        (
            "Which book by {author} in the library's genre {genre} that has a copy on the shelf "
            "was published first? Answer with its title, or none if there is no such book."
        ),
        (
            "Find the earliest published {genre} book by {author} of which the library has a copy "
            "on the shelf right now, and answer with its title; answer none if there isn't one."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """An author with books of a genre; perhaps none of them is on the shelf."""
        book = rng.choice(rows_of(state, "book"))
        books = rows_of(state, "book", author=book["author"], genre=book["genre"])
        there = [b for b in books if b["copies"]]
        oldest = only_extreme(there, "year")
        if (there and oldest is None) or (oldest is not None and len(books) < 2):
            return None
        return Posed(
            slots={"author": book["author"], "genre": book["genre"]},
            answer=answers.name(
                oldest["title"] if oldest else None, field_of(state, "book", "title")
            ),
            evidence=[(b["book_id"], "copies") for b in books],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Search, look at each, compare."""
        found = yield "search_books", {"author": slots["author"], "genre": slots["genre"]}
        there = []
        for entry in found["books"]:
            book = yield "get_book", {"book_id": entry["book_id"]}
            if book["copies"]:
                there.append(book)
        return str(min(there, key=lambda book: book["year"])["title"]) if there else "none"


CATALOGUE = Catalogue(DOMAIN, (LateFee(), NextShelf(), LendOrHold(), OldestByAuthor()))
