"""Actions, called by a hook."""

from everstep.loop.action_hook import Actions
from everstep.loop.controller import Controller
from everstep.loop.hooks import Hook

from .samples import SavedCounter


def test_actions_are_called_in_their_order_before_the_hooks_behind_them():
    trainer, seen = SavedCounter(), []

    class Behind(Hook):
        def on_window_end(self, step, logs):
            seen.append("hook")

    actions = Actions([lambda logs: seen.append("first"), lambda logs: seen.append("second")])
    Controller(trainer=trainer, steps_per_loop=5, hooks=[actions, Behind()]).train(5)
    assert seen == ["first", "second", "hook"]


def test_an_action_gets_the_controller_that_it_may_stop():
    class Stops:
        def set_controller(self, controller):
            self.controller = controller

        def __call__(self, logs):
            self.controller.stop("enough")

    controller = Controller(trainer=SavedCounter(), steps_per_loop=5, hooks=[Actions([Stops()])])
    controller.train(50)
    assert (controller.step, controller.stopped) == (5, "enough")


def test_only_actions_after_windows_act_there():
    """Otherwise each window would wait for the device."""
    assert Actions([print]).acts
    assert not Actions(evaluation=[print]).acts
