"""Several processes as threads of one, for tests of what they agree on; `tests/several` starts real ones."""

import concurrent.futures
import json
import threading

from everstep.gang import Gang, Member


class Board:
    """What the pretended processes have said, by key."""

    def __init__(self):
        self.said, self.changed = {}, threading.Condition()

    def say(self, key, value):
        with self.changed:
            self.said[key] = json.dumps(value)
            self.changed.notify_all()

    def hear(self, key):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.said, 60), key
            return json.loads(self.said[key])


class Pretended(Gang):
    def __init__(self, rank, size, board):
        self.rank, self.size, self._board, self._count = rank, size, board, 0

    @property
    def members(self):
        return [Member(rank, "here", rank) for rank in range(self.size)]

    def share(self, name, value):
        self._count += 1
        if self.is_first:
            self._board.say((name, self._count), value)
        return self._board.hear((name, self._count))

    def gather(self, name, value):
        self._count += 1
        self._board.say((name, self._count, self.rank), value)
        return [self._board.hear((name, self._count, rank)) for rank in range(self.size)]

    def broadcast(self, key, value):
        self._board.say(key, value)

    def receive(self, key, gives_up=None):
        return self._board.hear(key)


def together(size, work):
    """Calls `work` with the gang and the rank of each process, all at once; returns what each returned."""
    board = Board()
    with concurrent.futures.ThreadPoolExecutor(size) as threads:
        return list(threads.map(lambda rank: work(Pretended(rank, size, board), rank), range(size)))
