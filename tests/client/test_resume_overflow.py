"""The danger: a resume prompt that is larger than the model takes, or drops the goal and keeps the chatter."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateward import State
from stateward.agent import AgentState, ModelParameters, build_resume_context
from stateward.models import Checkpoint
from stateward.v1 import checkpoint_pb2
from stateward.v1.signal_pb2 import Signal
from stateward.window import estimate_tokens

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
# From the most important to the least, as the module promises.
RANKS = [
    "Goal",
    "Where the work stands",
    "Unfinished tool calls",
    "Pending signals",
    "Plan",
    "Open to-dos",
    "Summary so far",
    "Decisions",
    "Facts",
    "Last messages",
    "Recent tool results",
]
TEXTS = st.text(st.sampled_from("ab cdé\n#-"), min_size=1, max_size=120).filter(str.strip)


def make_state(text="something", messages=30, notes=3):
    state = State()
    agent = AgentState(state)
    agent.goal, agent.summary = text, text
    agent.model = ModelParameters(name="m", version="1", temperature=0.5, seed=7)
    for number in range(notes):
        agent.plan.add(f"{text} {number}", depends_on=["1"] if number else [])
        agent.todos.add(f"{text} {number}", time=NOON)
        agent.tool_calls.begin("search", {"q": number}, id=f"c{number}", time=NOON)
        agent.tool_calls.begin("look", {"q": number}, id=f"d{number}", time=NOON)
        agent.tool_calls.finish(f"d{number}", f"{text} {number}", time=NOON)
        agent.decisions.add(f"{text} {number}", reason="it is cheaper", alternatives=["other"], time=NOON)
        agent.facts.add(f"{text} {number}", source="a page", confidence=0.5, time=NOON)
    for number in range(messages):
        agent.messages.add("user", f"{text} {number}", time=NOON)
    return state


def sections(text):
    return re.findall(r"^## (.*)$", text, re.MULTILINE)


def test_everything_is_there_where_it_fits():
    """Each kind of fact is in the text, with what belongs to it, in the words that a model needs."""
    state = make_state(notes=1, messages=1)
    state.checkpoint = Checkpoint.from_proto(checkpoint_pb2.Checkpoint(version=9, step=4, status=2, status_detail="w"))
    agent = AgentState(state)
    done = agent.tool_calls.begin("book", {"hotel": "L"}, id="done")
    agent.tool_calls.finish(done, "ok")
    agent.messages.add("assistant", "I book", tool_calls=[done])
    state.logs["messages"].append({"role": "user", "content": "of another\n## kind"})
    agent.plan.set_status("1", "failed", "sold out")
    text = build_resume_context(state, 4000, signals=[Signal(name="approve", sender="ann"), {"free": "form"}])
    for part in [
        "> something",
        "saved as version 9, step 4, waiting: w",
        "model: m, version 1, temperature 0.5, seed 7",
        "- [failed] 1: something 0 — sold out",
        "- 1: something 0",
        'search({"q": 0}): was begun, outcome unknown (call c0, idempotency key c0)',
        "- approve from ann",
        '- {"free": "form"}',
        "something 0 — because it is cheaper — instead of other",
        "something 0 (source: a page, 2026-03-01 12:00, confidence 0.5)",
        '- **assistant**: I book [calls book({"hotel": "L"}) as done]',
        "- **user**: of another\n  ## kind",
    ]:
        assert part in text, part
    assert '- book({"hotel": "L"}): ok (call done)' in text
    assert "call done," not in text, "a finished call is shown as unfinished"
    assert sorted(sections(text)) == sorted(RANKS)
    assert "Left out" not in text


@settings(max_examples=60)
@given(TEXTS, st.integers(0, 40), st.integers(0, 5), st.integers(0, 1500), st.sampled_from([1, 2, 4]))
def test_the_budget_holds_and_the_important_stays(text, messages, notes, budget, characters):
    """Never a token too many; no item is cut; and what is left out is less important than all that is there, unless it
    would take half of the budget alone."""

    def tokens(what):
        return -(-len(what) // characters)

    state = make_state(text, messages, notes)
    shown = build_resume_context(state, budget, tokens)
    assert tokens(shown) <= budget
    assert shown == build_resume_context(state, budget, tokens)
    whole = build_resume_context(state, 10**6, tokens)
    assert "Left out" not in whole
    ranks = [RANKS.index(title) for title in sections(shown) if title in RANKS]
    bodies = dict(zip(*split(whole), strict=True))
    for title, body in zip(*split(shown), strict=True):
        assert set(items(body)) <= set(items(bodies[title])), f"an item of {title} was cut"
    for rank, title in enumerate(RANKS):
        if title in bodies and title not in sections(shown) and max(ranks, default=-1) > rank:
            smallest = min(tokens(item) for item in items(bodies[title]))
            assert smallest * 2 > budget, f"{title} is left out while less important parts are there"


def split(text):
    text = text.partition("\n\nLeft out")[0]
    parts = re.split(r"^## (.*)\n\n", text, flags=re.MULTILINE)
    titles = [each for each in parts[1::2] if each in RANKS]
    return titles, [body for title, body in zip(parts[1::2], parts[2::2], strict=True) if title in RANKS]


def items(body):
    return re.split(r"\n(?=[->] )", body.strip())


def test_a_smaller_budget_drops_the_oldest_messages_first():
    """As the budget shrinks, parts go one after the other from the end of the list, messages from the oldest on."""
    state = make_state()
    before = None
    for budget in range(600, 55, -5):
        text = build_resume_context(state, budget)
        numbers = [int(each) for each in re.findall(r"\*\*user\*\*: something (\d+)", text)]
        assert numbers == list(range(30 - len(numbers), 30))
        now = sum(1 for line in text.splitlines() if line.startswith(("- ", "> ")))
        assert before is None or now <= before
        before = now
        if numbers:
            assert set(sections(text)) >= {*RANKS[:9]} - {"Pending signals"}
    assert before < 5


def test_the_goal_goes_last_and_a_giant_does_not_push_out_the_rest():
    """With room for little there is the goal; one enormous fact, message or goal is left out and all others stay."""
    state = make_state(messages=2)
    assert sections(build_resume_context(state, 13)) == ["Goal"]
    agent = AgentState(state)
    agent.facts.add("x" * 8000, source="s")
    text = build_resume_context(state, 1000)
    assert "xxxx" not in text
    assert "Left out of this text, and kept in the state: 1 fact." in text
    assert "something 1" in text
    agent.goal = "y" * 8000
    text = build_resume_context(state, 1000)
    assert "1 goal" in text
    assert "**user**" in text


def test_looking_changes_nothing():
    """A prompt of a saved state leaves nothing to be saved, and nothing that the next save would have to compare."""
    state = make_state()
    stored = State()
    collected = state._collect()
    checkpoint = Checkpoint.from_proto(checkpoint_pb2.Checkpoint(version=1))
    state._rebase(collected, checkpoint, stored.origin, whole=False)
    text = build_resume_context(state)
    assert "something 29" in text
    assert not state._collect().diff.edits
    assert not state.slots._watched
    assert not state.logs["messages"]._watched


def test_a_partial_state_says_what_was_not_read():
    """What a partial state leaves out is said, and is no error."""
    state = State(partial=True)
    assert "all facts (not read)" in build_resume_context(state)
    with pytest.raises(ValueError, match="read in part, without slot 'agent/plan'"):
        AgentState(state).plan.add("this would replace the stored plan")


def test_the_estimate_and_its_limits():
    """Four characters a token, rounded up; a negative budget is an error, none at all gives nothing."""
    assert [estimate_tokens("x" * each) for each in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert build_resume_context(make_state(), 0) == ""
    with pytest.raises(ValueError, match="-1"):
        build_resume_context(State(), -1)
    assert build_resume_context(State()) == ""
