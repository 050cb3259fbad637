"""The danger: a state comes without the effects of its version, or with those of another."""

from stateward import Effect


def test_effects_come_with_the_state(thread):
    """Those of the version that is read, if they are asked for; a later save leaves them as they were read."""
    state = thread.hydrate(effects=True)
    assert state.effects == ()
    thread.save(state, checkpoint_id="a", effects=[Effect("2", [2], anchor="a"), Effect("1", {"n": 1}, anchor="a")])
    thread.effects.put([Effect("3", 3, anchor="b"), Effect("4", 4)])
    found = thread.hydrate(effects=True)
    assert [(each.key, each.value) for each in found.effects] == [("1", {"n": 1}), ("2", [2])]
    assert found.effects == tuple(thread.effects.list("a"))
    assert [each.value for each in thread.hydrate(since=found, effects=True).effects] == [{"n": 1}, [2]]
    thread.save(found, checkpoint_id="b")
    assert len(found.effects) == 2
    assert [each.key for each in thread.hydrate(effects=True).effects] == ["3"]
    assert thread.hydrate().effects == ()
