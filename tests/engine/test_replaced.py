"""What a thread replaces in Keras or a backend concerns that thread alone."""

import threading

import pytest

from everstep.engine.replaced import acting_for, current, replaced, replaced_in_all_threads, this_thread


class Base:
    def called(self):
        return "base"

    @property
    def value(self):
        return "base"


class Owner(Base):
    pass


def seen(owner):
    return owner.called(), owner.value


def in_a_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def around(name, text):
    """Returns a replacement that adds to what was there before."""
    before = current(Owner, name)
    return lambda self: f"{text} {before(self)}"


def test_only_the_thread_that_replaces_sees_it():
    owner = Owner()
    with replaced(Owner, "called", around("called", "my")), replaced(Owner, "value", property(lambda self: "mine")):
        assert seen(owner) == ("my base", "mine")
        assert in_a_thread(lambda: seen(owner)) == ("base", "base")
        with replaced(Owner, "called", around("called", "your")):
            assert owner.called() == "your my base"
        assert owner.called() == "my base"
    assert seen(owner) == ("base", "base")
    assert not {"called", "value"} & set(vars(Owner))


def test_threads_may_leave_in_another_order_than_they_entered():
    owner, entered, leave = Owner(), threading.Event(), threading.Event()
    found = []

    def other():
        with replaced(Owner, "called", around("called", "their")):
            entered.set()
            leave.wait()
            found.append(owner.called())

    thread = threading.Thread(target=other)
    with replaced(Owner, "called", around("called", "my")):
        thread.start()
        entered.wait()
        assert owner.called() == "my base"
    assert owner.called() == "base"
    leave.set()
    thread.join()
    assert found == ["their base"]
    assert "called" not in vars(Owner)


def test_a_thread_acts_for_another_one():
    owner, mine = Owner(), this_thread()

    def replica():
        with acting_for(mine):
            return owner.called()

    with replaced(Owner, "called", around("called", "my")):
        assert in_a_thread(replica) == "my base"


def test_an_attribute_that_did_not_exist_is_missing_again():
    owner = Owner()
    with replaced(Owner, "extra", property(lambda self: 1)):
        assert owner.extra == 1
        assert not in_a_thread(lambda: hasattr(owner, "extra"))
    with pytest.raises(AttributeError):
        _ = owner.extra


def test_a_replacement_for_all_threads_ends_with_the_last_block():
    owner = Owner()

    def louder(original):
        return lambda self: original(self).upper()

    with replaced_in_all_threads(Base, "called", louder):
        with replaced_in_all_threads(Base, "called", louder):
            assert in_a_thread(owner.called) == "BASE"
        assert owner.called() == "BASE"
    assert owner.called() == "base"
