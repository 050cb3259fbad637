"""The danger: an operator who cannot see what a store holds, or deletes more than was meant."""

import json

from tests.cli.conftest import Person


def test_records_are_seen_and_changed(stateward, client):
    """Listed, counted, shown, written under a condition, and deleted by key or prefix."""
    store = client.records("store")
    first = store.put("ana/food", {"likes": "pizza"}, attributes={"kind": "taste"})
    store.put("ana/raw", b"\xff", ttl=1000)
    store.put("ben/food", "soup")
    lines = stateward("records", "list", "store").out.splitlines()
    assert any("ana/food" in line and str(first) in line for line in lines)
    found = stateward("records", "list", "store", "--prefix", "ana/", "--newest", "--json").json
    assert [each["key"] for each in found] == ["ana/raw", "ana/food"]
    assert (found[1]["value"], found[1]["attributes"]) == ({"likes": "pizza"}, {"kind": "taste"})
    assert found[0]["ttl_s"] == 1000
    assert len(stateward("records", "list", "store", "--limit", "2", "--json").json) == 2
    assert stateward("records", "list", "store", "--by", "/", "--json").json == [
        {"prefix": "ana/", "records": 2}, {"prefix": "ben/", "records": 1},
    ]  # fmt: skip
    assert stateward("records", "get", "store", "ben/food").out.strip() == "soup"
    refused = stateward("records", "put", "store", "ana/food", '"x"', "--expected", "0")
    assert refused.code == 1
    assert "revision" in refused.err
    written = stateward("records", "put", "store", "ana/food", "[1, 2]", "--expected", str(first))
    assert int(written.out) > first
    assert store.get("ana/food").value == [1, 2]
    assert stateward("records", "put", "store", "k", "{no").code == 1
    fewer = stateward("records", "rm", "store", "ben/food", "nobody", "ben/food", "--yes")
    assert (fewer.code, fewer.out) == (1, "1 record deleted\n")
    assert fewer.error == "record 'nobody' of thread 'store' was not deleted: there is no such record"
    fewer = stateward("records", "rm", "store", "no", "nobody", "--yes", "--json")
    assert (fewer.code, [each["key"] for each in json.loads(fewer.out)["not_deleted"]]) == (1, ["no", "nobody"])
    assert "record 'nobody': there is no such record" in fewer.err
    fewer = stateward("records", "rm", "store", "ana/raw", "no", "nobody", person=Person(lambda: None))
    assert (fewer.code, fewer.out) == (1, "1 record deleted\n")
    assert "record 'no': there is no such record" in fewer.err
    store.put("ana/raw", 1)
    assert stateward("records", "rm", "store", "--prefix", "none/", "--yes").code == 0
    assert stateward("records", "rm", "store").code == 2
    assert "2 records deleted" in stateward("records", "rm", "store", "--prefix", "", "--yes").out
    assert stateward("records", "get", "store", "ana/food").code == 1


def test_numbers_that_no_record_can_have_are_wrong_use(stateward):
    """A TTL or revision that cannot be is one line that names the option, and the exit code of wrong use."""
    wrong = [("--ttl", "-1"), ("--ttl", "0"), ("--ttl", "nan"), ("--ttl", "inf"), ("--expected", "9" * 20)]
    for option, number in wrong:
        refused = stateward("records", "put", "store", "k", "1", option, number)
        assert (refused.code, len(refused.err.splitlines())) == (2, 1), (option, number, refused.err)
        assert option in refused.err
