"""What the engine on Ray needs of Ray, in one thread and with a clock of its own: actors do what a test says."""

from types import SimpleNamespace


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class ObjectLostError(RayError):
    pass


class OutOfMemoryError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(cause)
        self.cause = cause


class Answer:
    """What a call gives: a value, an error, or, with ``at`` a time, nothing before then (None: ever)."""

    def __init__(self, value, at=0.0):
        self.value, self.at = value, at


class Actor:
    """Calls `does(method, arguments)` for each call and gives its result: a value, an error or an `Answer`."""

    def __init__(self, does):
        self.calls, self.does, self.killed, self._actor_id = [], does, False, id(self)
        self.groups = {}  # by the name of a method, the concurrency group that it was asked in

    def __getattr__(self, method):
        if method.startswith("__"):
            raise AttributeError(method)

        def remote(*arguments):
            self.calls.append((method, arguments))
            found = self.does(method, arguments)
            return found if isinstance(found, Answer) else Answer(found)

        called = SimpleNamespace(remote=remote)
        called.options = lambda concurrency_group=None: self.groups.update({method: concurrency_group}) or called
        return called


class FakeRay:
    """The module; also stands for `time`: a wait without an answer takes its time at once."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayActorError=RayActorError, ObjectLostError=ObjectLostError, RayTaskError=RayTaskError,
        OutOfMemoryError=OutOfMemoryError, GetTimeoutError=GetTimeoutError,
    )  # fmt: skip

    def __init__(self, **nodes):
        self.now, self.lost = 0.0, set()
        self.resources = nodes  # of each node what it has
        self.reserved = {}

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def nodes(self):
        return [
            {"NodeID": name, "NodeManagerAddress": f"at-{name}", "Resources": has, "Alive": name not in self.lost}
            for name, has in self.resources.items()
        ]

    def free(self, _):
        """Stand for `room.free`."""
        return {
            node: {name: amount - self.reserved.get(node, {}).get(name, 0) for name, amount in has.items()}
            for node, has in self.resources.items()
            if node not in self.lost
        }

    def put(self, value):
        return value

    def kill(self, actor):
        actor.killed = True

    def wait(self, answers, num_returns=1, timeout=None):
        def done():
            return [each for each in answers if each.at is not None and each.at <= self.now]

        if not done():
            self.now += timeout
        return done(), [each for each in answers if each not in done()]

    def get(self, answer, timeout=None):
        if answer.at is None or answer.at > self.now:
            raise GetTimeoutError
        if isinstance(answer.value, Exception):
            raise answer.value
        return answer.value
