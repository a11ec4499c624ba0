"""Worlds of stock PyTorch's nodes and ours: who is in, who is which rank, where the workers meet."""

import pytest

from rdzv_nodes import agree, meet, side_by_side, until

KINDS = ("stock", "ours")


def names(nodes):
    return sorted(node.name for node in nodes)


def share_the_store(nodes):
    """What rank 0 puts into the round's store every other member can read there."""
    nodes[0].call("set", key="greeting", value=nodes[0].name).good
    for node in nodes[1:]:
        assert node.call("get", key="greeting").good["value"] == nodes[0].name


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("store", ("muster", *KINDS))
@side_by_side
def test_two_of_two_meet_whoever_hosts_and_whoever_comes_first(scenes, which, store, first):
    scene = scenes(which, store=store)
    # The one that hosts is made first; the one that comes first joins first, and sorts last.
    second = "ours" if first == "stock" else "stock"
    made = {kind: scene.node(kind, "127.0.0.2" if kind == first else "127.0.0.1")
            for kind in (KINDS if store != "ours" else reversed(KINDS))}
    waiting = made[first].begin("next")
    scene.until_in(1)
    done = made[second].begin("next")
    nodes = [made[first], made[second]]
    agree(nodes, [waiting.good(), done.good()], round=0)
    document = scene.document()
    assert document["complete"] and document["deadline"] is None
    assert scene.members() == names(nodes)
    share_the_store(nodes)


@pytest.mark.parametrize("store", KINDS)
@side_by_side
def test_four_of_four_complete_at_once(scenes, which, store):
    scene = scenes(which, nodes=(2, 4), store=store, last_call_timeout=60)
    kinds = KINDS if store == "stock" else tuple(reversed(KINDS))
    nodes = [scene.node(kind, f"127.0.0.{i}") for i, kind in enumerate(kinds + kinds, start=1)]
    agree(nodes, meet(*nodes), round=0)
    share_the_store(nodes)


@pytest.mark.parametrize("majority", KINDS)
@side_by_side
def test_three_of_four_go_ahead_after_the_last_call(scenes, which, majority):
    scene = scenes(which, nodes=(2, 4), last_call_timeout=2)
    minority = "ours" if majority == "stock" else "stock"
    nodes = [scene.node(kind, f"127.0.0.{i}")
             for i, kind in enumerate((majority, minority, majority), start=1)]
    agree(nodes, meet(*nodes), round=0)


@pytest.mark.parametrize("completes", KINDS)
@side_by_side
def test_either_side_ends_the_last_call(scenes, which, completes):
    """The other one is told of a last call too long to end it itself."""
    scene = scenes(which, nodes=(2, 3))
    other = "ours" if completes == "stock" else "stock"
    early = scene.node(other, "127.0.0.1", last_call_timeout=50)
    late = scene.node(completes, "127.0.0.2", last_call_timeout=2)
    waiting = early.begin("next")
    scene.until_in(1)
    done = late.begin("next")
    agree([early, late], [waiting.good(), done.good()], round=0)


@pytest.mark.parametrize("member", KINDS)
@side_by_side
def test_scale_up_from_one_by_a_late_joiner_of_the_other_side(scenes, which, member):
    scene = scenes(which, nodes=(1, 3), last_call_timeout=3)
    joiner = "ours" if member == "stock" else "stock"
    first = scene.node(member, "127.0.0.2")
    agree([first], meet(first), round=0)
    assert first.call("waiting").good["count"] == 0

    second = scene.node(joiner, "127.0.0.1")
    coming = second.begin("next")
    until(lambda: first.call("waiting").good["count"] == 1, what="the member sees that a node waits")
    again = first.begin("next")
    nodes = [first, second]
    results = [again.good(), coming.good()]
    assert [r["rank"] for r in results] == [1, 0]
    assert {(r["round"], r["world_size"]) for r in results} == {(1, 2)}
    if member == "ours" or which == "1.13.1":
        agree(nodes, results, round=1)  # PyTorch 2.13 cannot follow when rank 0 moves away from it

    # And one more, of the kind of the first: now it is full, so that nobody waits for a last call.
    third = scene.node(member, "127.0.0.3")
    coming = third.begin("next")
    scene.until(lambda d: len(d["wait_list"]) == 1, what="a node waits")
    for node in nodes:
        scene.until(lambda d: node.call("waiting").good["count"] == 1, what="a member sees it")
    pending = [node.begin("next") for node in nodes] + [coming]
    results = [p.good() for p in pending]
    assert [r["rank"] for r in results] == [1, 0, 2]
    assert {(r["round"], r["world_size"]) for r in results} == {(2, 3)}
    if member == "ours" or which == "1.13.1":
        # In 2.13 a rank 0 that stays does not publish its address again; ours know it all the same.
        agree([*nodes, third], results, round=2)


@side_by_side
def test_our_default_dialect_follows_the_document_that_is_there(scenes, which):
    scene = scenes(which)
    stock = scene.stock("127.0.0.1")
    waiting = stock.begin("next")
    scene.until_in(1)
    ours = scene.our("127.0.0.2", dialect=None)
    coming = ours.begin("next")
    agree([stock, ours], [waiting.good(), coming.good()], round=0)


@side_by_side
def test_the_command_joins_and_tells(scenes, which):
    scene = scenes(which)
    stock = scene.stock("127.0.0.1")
    waiting = stock.begin("next")
    ours = scene.join("127.0.0.2")
    told, result = ours.joined(), waiting.good()
    assert told["run_id"] == scene.run_id and told["backend"] == "c10d"
    assert (told["round"], told["rank"], told["world_size"]) == (0, 1, 2)
    assert result["rank"] == 0 and result["world_size"] == 2
    if which == "1.13.1":  # its agent publishes the address in a step that comes after the rendezvous
        assert (told["master_addr"], told["master_port"]) == (None, None)
    else:
        assert (told["master_addr"], told["master_port"]) == (result["addr"], result["port"])
    assert "127.0.0.2" in str(told["node"])
    assert len(told["members"]) == 2
    assert "127.0.0.1" in str(told["members"][0]) and "127.0.0.2" in str(told["members"][1])
    assert ours.end() == 0
    scene.until_in(1)  # without --hold it leaves


@pytest.mark.parametrize("early", KINDS)
@side_by_side
def test_a_join_that_times_out_takes_itself_out_of_the_document(scenes, which, early):
    scene = scenes(which, engine="off")
    node = scene.node(early, "127.0.0.1", join_timeout=2)
    assert node.call("next").error == "RendezvousTimeoutError"
    document = scene.document()
    assert document["participants"] == [] and document["last_heartbeats"] == []
    assert not document["complete"] and document["round"] == 0
    # Nothing of it is in the way of others.
    nodes = [scene.stock("127.0.0.1"), scene.our("127.0.0.2")]
    agree(nodes, meet(*nodes), round=0)


@side_by_side
def test_the_command_says_that_its_time_is_up(scenes, which):
    scene = scenes(which, engine="off")
    ours = scene.join("127.0.0.2", join_timeout=1)
    assert ours.end() == 4, ours.said
    assert ours.said != ""
    assert scene.document()["participants"] == []
